//! The variants of a sample whose outputs are averaged to one prediction.

/// Variants of each sample: mirrored along all combinations of some dims, under each of several weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variants {
    /// Which of D, H, W are reversed; none of them first.
    flips: Vec<[bool; 3]>,
    weights: usize,
}

impl Default for Variants {
    fn default() -> Self {
        Self::new([false; 3], 1)
    }
}

impl Variants {
    /// All 2^k flips of k of the dims D, H, W, under each of this many weights.
    pub fn new(mirrored: [bool; 3], weights: usize) -> Self {
        let flip = |bits: usize| [0, 1, 2].map(|dim| bits >> dim & 1 == 1);
        let is_asked = |flip: &[bool; 3]| flip.iter().zip(mirrored).all(|(&one, all)| all || !one);
        Self {
            flips: (0..8).map(flip).filter(is_asked).collect(),
            weights,
        }
    }

    /// Number of variants of a sample. Those of the first weights come first.
    pub fn count(&self) -> usize {
        self.flips.len() * self.weights
    }

    /// Number of different weights.
    pub fn weights(&self) -> usize {
        self.weights
    }

    /// The weights of a variant.
    pub fn weights_of(&self, variant: usize) -> usize {
        variant / self.flips.len()
    }

    /// Which of D, H, W are reversed in a variant.
    pub fn flip(&self, variant: usize) -> [bool; 3] {
        self.flips[variant % self.flips.len()]
    }

    /// Whether any variant is mirrored.
    pub fn mirrors(&self) -> bool {
        self.flips.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_all_flips_under_each_of_the_weights() {
        assert_eq!(Variants::default().count(), 1);
        let variants = Variants::new([false, true, true], 2);
        let flips = [
            [false; 3],
            [false, true, false],
            [false, false, true],
            [false, true, true],
        ];
        assert_eq!(variants.count(), 8);
        for variant in 0..8 {
            assert_eq!(variants.flip(variant), flips[variant % 4]);
            assert_eq!(variants.weights_of(variant), variant / 4);
        }
    }
}
