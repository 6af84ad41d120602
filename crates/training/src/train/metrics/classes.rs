//! Figures of single classes, under their names.

use crate::train::check;
use crate::train::checkpoint::BestMetric;
use crate::train::run::Run;
use partita_graph::Graph;
use partita_session::{ClassCount, EpochReport};

/// Most classes with a column of their own.
const COLUMNS_MAX: usize = 100;
/// Means over the classes.
const MEANS: [BestMetric; 2] = [BestMetric::MeanDice, BestMetric::MeanOverlap];

/// The names of the classes of a run; none for a regression.
#[derive(Clone, Debug, Default)]
pub struct ClassNames {
    names: Vec<String>,
    /// Whether the run has the Dice coefficients of single samples.
    has_sample_dice: bool,
}

impl ClassNames {
    /// Those of a run.
    pub fn of_run(run: &Run, graph: &Graph, named: &[String]) -> Self {
        Self::new(check::classes(graph), named, run.needs_sample_dice())
    }

    /// Of a network with `classes`: those that the dataset names, or all by number if it names none.
    fn new(classes: Option<usize>, named: &[String], has_sample_dice: bool) -> Self {
        let names = match (classes, named) {
            (None, _) => Vec::new(),
            (Some(classes), []) => (0..classes).map(|class| class.to_string()).collect(),
            (Some(classes), named) => named.iter().take(classes).cloned().collect(),
        };
        Self {
            names,
            has_sample_dice,
        }
    }

    /// The names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Means over the classes and the Dice coefficient of each, where they have one.
    pub fn figures(&self, epoch: &EpochReport) -> Vec<(String, Option<f64>)> {
        self.figures_of(epoch, &self.names)
    }

    fn figures_of(&self, epoch: &EpochReport, names: &[String]) -> Vec<(String, Option<f64>)> {
        if self.names.is_empty() {
            return Vec::new();
        }
        let mean = |metric: BestMetric| (metric.name().to_owned(), metric.value(epoch));
        let counts = epoch.validation.as_ref().map(|found| &found.classes);
        let dice = |(class, name): (usize, &String)| {
            let count = counts.and_then(|counts| counts.get(class));
            (format!("dice/{name}"), count.and_then(ClassCount::dice))
        };
        let means = MEANS.into_iter().map(mean);
        // Behind the others, so that rows before a resumed run that asks for it have the columns of their time.
        let of_samples = self.has_sample_dice.then(|| mean(BestMetric::SampleDice));
        means
            .chain(names.iter().enumerate().map(dice))
            .chain(of_samples)
            .collect()
    }

    /// Names of the columns of a table, after others, each with a comma before it.
    pub fn columns(&self) -> String {
        let figures = self.columns_of(&EpochReport::default());
        let names = figures.iter().map(|(name, _)| format!(",{}", cell(name)));
        names.collect()
    }

    /// The cells of an epoch under [`Self::columns`].
    pub fn cells(&self, epoch: &EpochReport) -> String {
        let figures = self.columns_of(epoch).into_iter();
        let text = |number: f64| number.to_string();
        let cells =
            figures.map(|(_, number)| format!(",{}", number.map_or_else(String::new, text)));
        cells.collect()
    }

    fn columns_of(&self, epoch: &EpochReport) -> Vec<(String, Option<f64>)> {
        let is_listed = self.names.len() <= COLUMNS_MAX;
        self.figures_of(epoch, if is_listed { &self.names } else { &[] })
    }
}

/// A text as a cell. Source: RFC 4180, section 2.
fn cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_session::Validation;

    #[test]
    fn columns_are_quoted_and_stay_in_bounds() {
        let named = ["liver", "left, \"small\""].map(str::to_owned);
        let two = ClassNames::new(Some(2), &named, false);
        let expected = ",mean_dice,mean_overlap,dice/liver,\"dice/left, \"\"small\"\"\"";
        assert_eq!(two.columns(), expected);
        let count = |hits, predicted, actual| ClassCount {
            hits,
            predicted,
            actual,
        };
        let epoch = EpochReport {
            validation: Some(Validation {
                classes: vec![count(3.0, 4.0, 4.0), ClassCount::default()],
                samples: 2,
                sample_dice_sum: Some(0.5),
                ..Validation::default()
            }),
            ..EpochReport::default()
        };
        assert_eq!(two.cells(&epoch), ",0.75,0.6,0.75,");
        let of_samples = ClassNames::new(Some(2), &named, true);
        assert_eq!(of_samples.columns(), format!("{expected},sample_dice"));
        assert_eq!(of_samples.cells(&epoch), ",0.75,0.6,0.75,,0.25");
        assert_eq!(
            ClassNames::new(Some(101), &[], false).columns(),
            ",mean_dice,mean_overlap"
        );
        let many = ClassNames::new(Some(101), &[], true);
        assert_eq!(many.columns(), ",mean_dice,mean_overlap,sample_dice");
        assert_eq!(ClassNames::new(None, &named, true).columns(), "");
    }
}
