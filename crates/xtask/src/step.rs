//! A command of the test suite.

use std::process::Command;

/// Makes the property tests run many more cases.
pub(crate) const LONG: &str = "PARTITA_TEST_LONG";

/// One command of the suite.
pub(crate) struct Step {
    /// Its title.
    pub(crate) name: &'static str,
    /// The command; its output is parsed.
    pub(crate) command: Command,
}
