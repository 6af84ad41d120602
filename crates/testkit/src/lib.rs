//! Room `testkit`.
