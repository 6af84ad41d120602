//! The losses, a closed enum.

use crate::ElementFunction;

/// Losses, as the mean over the mini-batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Loss {
    /// Mean over all elements of the squared difference; the target has the input's shape.
    MeanSquaredError,
    /// Negative log of the softmax over C at the target class, mean over samples and positions.
    SoftmaxCrossEntropy {
        /// Label smoothing in `[0, 1)`: the part of the target's weight that is spread evenly over all classes.
        /// Source: Szegedy et al., CVPR 2016, section 7; PyTorch, `CrossEntropyLoss`.
        smoothing: f64,
    },
    /// Mean over all elements of a function of output and target; the target has the input's shape.
    Elements(ElementLoss),
    /// Dice, cross-entropy with weights of classes or an ignored index, or the sum of both.
    Classes(ClassLoss),
}

/// What the target of a loss holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// A number per element of the input.
    Values,
    /// A class index per position.
    Classes,
}

impl Loss {
    /// Softmax cross-entropy without smoothing.
    pub const CROSS_ENTROPY: Self = Self::SoftmaxCrossEntropy { smoothing: 0.0 };

    /// What its target holds.
    pub fn target(&self) -> TargetKind {
        match self {
            Self::MeanSquaredError | Self::Elements(_) => TargetKind::Values,
            Self::SoftmaxCrossEntropy { .. } | Self::Classes(_) => TargetKind::Classes,
        }
    }

    /// The index of targets that do not count.
    pub fn ignored(&self) -> Option<i64> {
        match self {
            Self::Classes(loss) => loss.ignore,
            Self::MeanSquaredError | Self::SoftmaxCrossEntropy { .. } | Self::Elements(_) => None,
        }
    }

    /// Weights of channels; empty where all are 1, or not known yet.
    pub fn weights(&self) -> &[f64] {
        match self {
            Self::Classes(loss) => loss.weights.values(),
            Self::Elements(loss) => &loss.weights,
            Self::MeanSquaredError | Self::SoftmaxCrossEntropy { .. } => &[],
        }
    }
}

/// A loss of single elements, as the mean over all elements of `weights[c] * function(x, target)`.
#[derive(Clone, Debug, PartialEq)]
pub struct ElementLoss {
    /// The function.
    pub function: ElementFunction,
    /// A factor per channel; empty where all are 1. The mean divides by the number of elements, as
    /// `(weights * loss).mean()` does.
    pub weights: Vec<f64>,
}

/// `cross_entropy` times the cross-entropy plus `dice` times the soft Dice loss, of the softmax over channels.
///
/// Cross-entropy is the weighted mean over the positions of a micro-batch that are not ignored: the sum over
/// positions of `weights[class] * loss`, divided by the sum of these weights; 0 where nothing counts. Source:
/// PyTorch, `CrossEntropyLoss`.
///
/// With the sums I of the softmax at the target class, P of the softmax and G of targets over the positions of a
/// sample that are not ignored, the Dice loss of a class is `1 - (2 I + smooth) / (P + G + smooth)`, times its
/// weight; its mean is taken over classes and samples. Source: Milletari et al., 3DV 2016; MONAI, `DiceLoss`
/// with `softmax=True`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassLoss {
    /// Factor of the cross-entropy; 0 omits it.
    pub cross_entropy: f64,
    /// Factor of the Dice loss; 0 omits it.
    pub dice: f64,
    /// Label smoothing of the cross-entropy.
    pub smoothing: f64,
    /// Added to numerator and denominator of Dice; above 0.
    pub smooth: f64,
    /// Whether class 0 counts in Dice.
    pub background: bool,
    /// Whether the sums of Dice are over all samples of a micro-batch, or of a split that is evaluated, not over each
    /// sample.
    pub batch: bool,
    /// A weight per class.
    pub weights: ClassWeights,
    /// The weights of Dice; `None` where they are `weights`, too.
    pub dice_weights: Option<ClassWeights>,
    /// Positions with this target do not count.
    pub ignore: Option<i64>,
}

/// Weights of the classes of a loss.
#[derive(Clone, Debug, PartialEq)]
pub enum ClassWeights {
    /// One per class; empty where all are 1.
    Listed(Vec<f64>),
    /// The inverse frequency of each class in the labels of a training, as [`inverse_frequency`] computes it; empty until
    /// these are counted, when all count as 1.
    InverseFrequency(Vec<f64>),
}

impl ClassWeights {
    /// The word of a model file for weights that follow from the labels.
    pub const INVERSE_FREQUENCY: &'static str = "inverse_frequency";
    /// Weight 1 for all classes.
    pub const ONES: Self = Self::Listed(Vec::new());

    /// One per class; empty where all are 1, or not known yet.
    pub fn values(&self) -> &[f64] {
        match self {
            Self::Listed(weights) | Self::InverseFrequency(weights) => weights,
        }
    }

    /// Those that follow from the labels of a training, which are empty until they are counted.
    fn inverse_frequency(&self) -> Option<&[f64]> {
        match self {
            Self::Listed(_) => None,
            Self::InverseFrequency(weights) => Some(weights),
        }
    }
}

/// Weights of classes from the number of labels of each: `labels / (present * count)`, rounded to six significant digits,
/// where `present` is the number of classes that occur; 0 for a class that does not.
///
/// Source: scikit-learn, `compute_class_weight("balanced")`, over the classes that occur.
pub fn inverse_frequency(counts: &[u64]) -> Vec<f64> {
    let labels = counts.iter().sum::<u64>() as f64;
    let present = counts.iter().filter(|&&count| count > 0).count() as f64;
    let weight = |&count: &u64| match count {
        0 => 0.0,
        count => six_digits(labels / (present * count as f64)),
    };
    counts.iter().map(weight).collect()
}

/// The nearest number that has six significant digits, so that what is printed is what is used.
fn six_digits(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

impl ClassLoss {
    /// The weights that follow from the labels of a training, which are empty until they are counted.
    pub fn inverse_frequency(&self) -> Option<&[f64]> {
        let of_dice = self.dice_weights.as_ref();
        let own = self.weights.inverse_frequency();
        own.or_else(|| of_dice.and_then(ClassWeights::inverse_frequency))
    }

    /// Gives weights that follow from the labels these values.
    pub(crate) fn set_inverse_frequency(&mut self, values: &[f64]) {
        let of_dice = self.dice_weights.iter_mut();
        for weights in of_dice.chain([&mut self.weights]) {
            if weights.inverse_frequency().is_some() {
                *weights = ClassWeights::InverseFrequency(values.to_vec());
            }
        }
    }

    /// Cross-entropy alone, without options.
    pub const CROSS_ENTROPY: Self = Self {
        cross_entropy: 1.0,
        dice: 0.0,
        smoothing: 0.0,
        smooth: 1e-5,
        background: true,
        batch: false,
        weights: ClassWeights::ONES,
        dice_weights: None,
        ignore: None,
    };

    /// Dice alone, without options.
    pub const DICE: Self = Self {
        cross_entropy: 0.0,
        dice: 1.0,
        smoothing: 0.0,
        smooth: 1e-5,
        background: true,
        batch: false,
        weights: ClassWeights::ONES,
        dice_weights: None,
        ignore: None,
    };

    /// Whether cross-entropy divides by a sum over positions that depends on the targets.
    pub fn counts_targets(&self) -> bool {
        self.cross_entropy != 0.0 && (self.ignore.is_some() || self.weights != ClassWeights::ONES)
    }

    /// Whether Dice is a ratio of sums over several samples.
    pub fn sums_samples(&self) -> bool {
        self.dice != 0.0 && self.batch
    }
}
