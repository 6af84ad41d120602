//! Results of evaluations.

use partita_program::ClassTerms;
use partita_run::RunError;
use partita_space::Seconds;
use serde::{Deserialize, Serialize};

/// Results of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// Loss of its samples: a mean over samples, or a sum over all of them divided by another one. Until the end of an
    /// evaluation the sum of what is a mean over samples.
    pub loss: f64,
    /// Number of samples.
    pub samples: usize,
    /// Sum of absolute errors over samples, for each target of a regression.
    pub absolute: Vec<f64>,
    /// Sum of squared errors over samples, for each target of a regression.
    pub squared: Vec<f64>,
    /// Counts over positions of all samples, for each class of a classifier.
    pub classes: Vec<ClassCount>,
    /// Sum of the cross-entropy over its samples and what it is divided by, for [`Plan::divided`](crate::Plan::divided).
    #[serde(default)]
    pub entropy: [f64; 2],
    /// Sums of Dice over all samples, where it is not a mean over samples.
    #[serde(default)]
    pub dice_sums: Vec<f64>,
    /// Sum over samples of the mean Dice coefficient of their foreground, for [`Plan::sample_dice`](crate::Plan::sample_dice).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_dice_sum: Option<f64>,
    /// Time, fetches included.
    pub seconds: Seconds,
}

/// Confusion counts of one class, in positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassCount {
    /// True positives.
    pub hits: f64,
    /// Positions predicted as the class: its score is the greatest, the first of equals.
    pub predicted: f64,
    /// Positions labeled with the class.
    pub actual: f64,
}

impl ClassCount {
    /// The Dice coefficient, `2 hits / (predicted + actual)`; `None` if the class is neither predicted nor
    /// labeled.
    ///
    /// Source: Dice, Ecology 26(3), 1945.
    pub fn dice(&self) -> Option<f64> {
        let sum = self.predicted + self.actual;
        (sum > 0.0).then(|| 2.0 * self.hits / sum)
    }

    /// Intersection over union, `hits / (predicted + actual - hits)`; `None` as for [`Self::dice`].
    pub fn iou(&self) -> Option<f64> {
        let union = self.predicted + self.actual - self.hits;
        (union > 0.0).then(|| self.hits / union)
    }
}

impl Validation {
    /// Adds a step; losses are summed until the end. `divided` is that of the plan.
    pub(crate) fn add(&mut self, batch: &EvaluatedBatch, divided: Option<&ClassTerms>) {
        let (samples, counts) = (batch.samples as f64, batch.counts());
        let mean = match divided {
            None => batch.loss(),
            Some(terms) => {
                let (entropy, dice) = (batch.entropy(), batch.dice_sums());
                let has_counts = terms.ignore.is_some() || !terms.weights.is_empty();
                let divisor = if has_counts {
                    terms.entropy_divisor(&counts[2 * counts.len() / 3..])
                } else {
                    samples
                };
                let entropy_sum = entropy * divisor;
                add(&mut self.entropy, &[entropy_sum, divisor]);
                self.dice_sums.resize(dice.len(), 0.0);
                add(&mut self.dice_sums, &dice);
                if dice.is_empty() {
                    batch.loss() - entropy
                } else {
                    0.0
                }
            }
        };
        self.loss += mean * samples;
        self.samples += batch.samples;
        self.add_errors(&batch.errors());
        self.add_counts(&counts);
    }

    /// Adds the Dice coefficient of a step of one sample: the mean over all classes but 0, of which one that the sample
    /// neither has nor is predicted to have counts 1.
    ///
    /// Source: MONAI, `DiceMetric(include_background=False, ignore_empty=False)`.
    pub(crate) fn add_sample_dice(&mut self, batch: &EvaluatedBatch) {
        assert_eq!(batch.samples, 1, "samples of a step");
        let mut sample = Self::default();
        sample.add_counts(&batch.counts());
        let [_, foreground @ ..] = sample.classes.as_slice() else {
            return;
        };
        let all: f64 = foreground
            .iter()
            .map(|class| class.dice().unwrap_or(1.0))
            .sum();
        *self.sample_dice_sum.get_or_insert(0.0) += all / foreground.len() as f64;
    }

    /// What is divided by sums over all samples, of the loss.
    fn quotients(&self, divided: Option<&ClassTerms>) -> f64 {
        let Some(terms) = divided else { return 0.0 };
        let [sum, divisor] = self.entropy;
        let entropy = if divisor == 0.0 { 0.0 } else { sum / divisor };
        let classes = self.dice_sums.len() / 3;
        if classes == 0 {
            return entropy;
        }
        let row = |row: usize| &self.dice_sums[row * classes..][..classes];
        let mut derivatives = vec![[0.0; 2]; classes];
        entropy + terms.dice_factors([row(0), row(1), row(2)], &mut derivatives)
    }

    /// The loss of all samples, once all steps are added.
    pub(crate) fn finish(&mut self, divided: Option<&ClassTerms>) {
        self.loss /= self.samples.max(1) as f64;
        self.loss += self.quotients(divided);
    }

    /// Adds the samples of another evaluation of the same network. `divided` is that of both plans.
    pub fn join(&mut self, other: &Self, divided: Option<&ClassTerms>) {
        let means = [&*self, other].map(|one| (one.loss - one.quotients(divided), one.samples));
        self.loss = means
            .map(|(mean, samples)| mean * samples as f64)
            .iter()
            .sum();
        self.samples += other.samples;
        if let Some(sum) = other.sample_dice_sum {
            *self.sample_dice_sum.get_or_insert(0.0) += sum;
        }
        add(&mut self.entropy, &other.entropy);
        self.dice_sums
            .resize(other.dice_sums.len().max(self.dice_sums.len()), 0.0);
        add(&mut self.dice_sums, &other.dice_sums);
        self.finish(divided);
        self.add_errors(&[other.absolute.as_slice(), &other.squared].concat());
        let counts = [
            |class: &ClassCount| class.hits,
            |class: &ClassCount| class.predicted,
            |class: &ClassCount| class.actual,
        ];
        let counts: Vec<f64> = counts
            .iter()
            .flat_map(|count| other.classes.iter().map(count))
            .collect();
        self.add_counts(&counts);
        self.seconds += other.seconds;
    }

    /// Fraction of the positions predicted correctly; `None` for a regression.
    pub fn accuracy(&self) -> Option<f64> {
        let sum = |count: fn(&ClassCount) -> f64| self.classes.iter().map(count).sum::<f64>();
        let actual = sum(|class| class.actual);
        (actual > 0.0).then(|| sum(|class| class.hits) / actual)
    }

    /// Mean over samples of the mean Dice coefficient of their foreground, where it was asked for.
    pub fn sample_dice(&self) -> Option<f64> {
        let sum = self.sample_dice_sum?;
        (self.samples > 0).then(|| sum / self.samples as f64)
    }

    /// `counts` has the hits of all classes, then the predicted, then the actual positions.
    fn add_counts(&mut self, counts: &[f64]) {
        let number = counts.len() / 3;
        self.classes.resize(number, ClassCount::default());
        for (class, count) in self.classes.iter_mut().enumerate() {
            count.hits += counts[class];
            count.predicted += counts[number + class];
            count.actual += counts[2 * number + class];
        }
    }

    /// `errors` has the sums of absolute errors of all targets, then those of squared errors.
    fn add_errors(&mut self, errors: &[f64]) {
        let (absolute, squared) = errors.split_at(errors.len() / 2);
        for (sums, more) in [(&mut self.absolute, absolute), (&mut self.squared, squared)] {
            sums.resize(more.len(), 0.0);
            add(sums, more);
        }
    }
}

fn add(sums: &mut [f64], more: &[f64]) {
    sums.iter_mut()
        .zip(more)
        .for_each(|(sum, more)| *sum += more);
}

/// Results of one step of an evaluation, as bits, so that they are exact in any text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluatedBatch {
    /// Samples.
    pub samples: usize,
    loss: u64,
    errors: Vec<u64>,
    counts: Vec<u64>,
    #[serde(default)]
    entropy: u64,
    #[serde(default)]
    dice_sums: Vec<u64>,
}

impl EvaluatedBatch {
    /// The results of this many samples: their loss, sums of errors and counts.
    pub fn new(samples: usize, loss: f64, errors: &[f64], counts: &[f64]) -> Self {
        Self {
            samples,
            loss: loss.to_bits(),
            errors: bits(errors),
            counts: bits(counts),
            ..Self::default()
        }
    }

    /// With the cross-entropy of the loss, and the sums of its Dice.
    pub(crate) fn with_parts(mut self, entropy: f64, dice_sums: &[f64]) -> Self {
        (self.entropy, self.dice_sums) = (entropy.to_bits(), bits(dice_sums));
        self
    }

    /// The loss of these samples alone.
    pub fn loss(&self) -> f64 {
        f64::from_bits(self.loss)
    }

    fn entropy(&self) -> f64 {
        f64::from_bits(self.entropy)
    }

    fn dice_sums(&self) -> Vec<f64> {
        self.dice_sums.iter().copied().map(f64::from_bits).collect()
    }

    /// The same as results of an evaluation of these samples alone, without a time.
    pub fn validation(&self) -> Validation {
        let mut validation = Validation::default();
        validation.add(self, None);
        validation.loss = self.loss();
        validation
    }

    pub(crate) fn errors(&self) -> Vec<f64> {
        self.errors.iter().copied().map(f64::from_bits).collect()
    }

    pub(crate) fn counts(&self) -> Vec<f64> {
        self.counts.iter().copied().map(f64::from_bits).collect()
    }
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The results of all steps of an evaluation, in order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// Of each step.
    pub batches: Vec<EvaluatedBatch>,
    /// Time, fetches included.
    pub seconds: Seconds,
}

/// Joins outputs of samples, group by group, on each rank.
pub trait JoinOutputs {
    /// Called on every rank once its steps of a group are done, for the group of this number.
    ///
    /// Errors: files that cannot be read or written; another rank failed, or the run was cancelled.
    fn join(&mut self, group: usize) -> Result<(), RunError>;

    /// Called on every rank after the last group of an evaluation in a training: the results of what was joined, the same
    /// on all ranks; with the loss that ended it, if one is infinite or NaN.
    ///
    /// Errors: as for [`join`](Self::join), and those of a step.
    fn evaluate(&mut self) -> Result<Validation, RunError>;
}
