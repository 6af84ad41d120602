//! Along which dims of samples the kernels of a file lie.

use partita_space::Help;
use std::fmt;
use std::str::FromStr;

/// Letters of the dims of samples along the spatial dims of kernels in a PyTorch file, such as `WHD`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelAxes(pub(super) String);

/// A text that is no order of dims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no order of dims{help}",
    help = Help::possible("D, H and W, each once, such as DHW or WHD, and HW or WH of images")
)]
pub struct NoKernelAxes(String);

impl FromStr for KernelAxes {
    type Err = NoKernelAxes;

    fn from_str(text: &str) -> Result<Self, NoKernelAxes> {
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        if [vec!['D', 'H', 'W'], vec!['H', 'W']].contains(&letters) {
            return Ok(Self(text.to_owned()));
        }
        Err(NoKernelAxes(text.to_owned()))
    }
}

impl fmt::Display for KernelAxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl KernelAxes {
    /// The dim (D is 0, H 1, W 2) of each spatial dim of the file; those that a model lacks come first.
    pub(super) fn dims(&self) -> [usize; 3] {
        let mut dims = [0; 3];
        let skipped = 3 - self.0.len();
        for (at, letter) in self.0.chars().enumerate() {
            dims[skipped + at] = "DHW".find(letter).unwrap_or(0);
        }
        dims
    }
}
