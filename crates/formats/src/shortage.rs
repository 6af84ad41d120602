//! What an error of the budget of decoding says.

use partita_space::Bytes;

/// What was asked for, and what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// What decoding takes.
    pub asked: Bytes,
    /// The budget.
    pub limit: Bytes,
    /// What is claimed of it already.
    pub claimed: Bytes,
}

impl Shortage {
    /// The budget with which it would do, in a form to type.
    pub fn enough(&self) -> String {
        let mebibytes = (self.asked.0.saturating_add(self.claimed.0)).div_ceil(1 << 20);
        if mebibytes < 1 << 10 {
            format!("{mebibytes}MiB")
        } else {
            format!("{}GiB", mebibytes.div_ceil(1 << 10))
        }
    }
}
