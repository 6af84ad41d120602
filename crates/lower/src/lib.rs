//! Room `lower`.
