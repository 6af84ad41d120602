//! Room `tune`.
