//! Room `local`.
