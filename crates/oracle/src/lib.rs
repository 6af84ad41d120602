//! Room `oracle`.
