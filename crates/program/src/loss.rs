//! Constants of losses.

use serde::{Deserialize, Serialize};

/// Constants of a loss of classes: `cross_entropy` times the cross-entropy plus `dice` times the Dice loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassTerms {
    /// Factor of the cross-entropy; 0 omits it.
    pub cross_entropy: f64,
    /// Factor of the Dice loss; 0 omits it.
    pub dice: f64,
    /// Label smoothing of the cross-entropy.
    pub smoothing: f64,
    /// Added to numerator and denominator of Dice.
    pub smooth: f64,
    /// Whether class 0 counts in Dice.
    pub background: bool,
    /// A weight per class; empty where all are 1.
    pub weights: Vec<f64>,
    /// The weights of Dice; `None` where they are `weights`, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dice_weights: Option<Vec<f64>>,
    /// Positions with this target do not count.
    pub ignore: Option<i64>,
    /// Positions of the mini-batch.
    pub all: u64,
    /// Positions over which a sum of Dice is taken.
    pub summed: u64,
}

impl ClassTerms {
    /// Weight of a class in the cross-entropy.
    pub fn weight(&self, class: usize) -> f64 {
        self.weights.get(class).copied().unwrap_or(1.0)
    }

    /// Weight of a class in Dice.
    pub fn dice_weight(&self, class: usize) -> f64 {
        let weights = self.dice_weights.as_ref().unwrap_or(&self.weights);
        weights.get(class).copied().unwrap_or(1.0)
    }

    /// What the cross-entropy is divided by if the positions of each class were counted: the sum of their weights.
    pub fn entropy_divisor(&self, totals: &[f64]) -> f64 {
        let totals = totals.iter().enumerate();
        totals
            .map(|(class, count)| self.weight(class) * count)
            .sum()
    }

    /// What `cross_entropy` is multiplied with at each position, from the positions of each class in the mini-batch, if
    /// they were counted; 0 where nothing counts.
    pub fn entropy_factor(&self, totals: Option<&[f64]>) -> f64 {
        let Some(totals) = totals else {
            return self.cross_entropy / self.all as f64;
        };
        match self.entropy_divisor(totals) {
            0.0 => 0.0,
            divisor => self.cross_entropy / divisor,
        }
    }

    /// What the Dice loss adds at each position, and per class what it adds to the derivative by the softmax:
    /// everywhere, and less at positions of the class.
    ///
    /// `sums` are three per class: of the softmax at positions of the class, of the softmax, and the number of
    /// positions of the class.
    pub fn dice_factors(
        &self,
        [hits, given, wanted]: [&[f64]; 3],
        derivatives: &mut [[f64; 2]],
    ) -> f64 {
        let first = usize::from(!self.background);
        let classes = (hits.len() - first) as f64;
        let factor = self.dice / classes / self.all as f64;
        let by_softmax = factor * self.summed as f64;
        let mut loss = 0.0;
        for (class, derivative) in derivatives.iter_mut().enumerate() {
            if class < first {
                *derivative = [0.0; 2];
                continue;
            }
            let above = 2.0 * hits[class] + self.smooth;
            let below = given[class] + wanted[class] + self.smooth;
            let weight = self.dice_weight(class);
            loss += weight * (1.0 - above / below);
            *derivative = [
                by_softmax * weight * above / (below * below),
                by_softmax * weight * 2.0 / below,
            ];
        }
        factor * loss
    }

    /// What is ignored, as a number that a target may hold.
    pub fn ignores(&self, target: f64) -> bool {
        self.ignore.is_some_and(|index| target == index as f64)
    }
}
