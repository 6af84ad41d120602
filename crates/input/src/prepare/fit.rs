//! Statistics of the training split.
//!
//! Blocks of samples are read by several threads, each with a reader of its own. What they find is joined in the
//! order of the blocks, so that statistics do not depend on the number of threads.

use std::path::Path;

use partita_data::{Dataset, Moments, Reader, Split};
use partita_formats::slab::{self, Region4};
use partita_formats::{DataError, Samples};
use partita_space::on_threads;

use super::kept::Kept;
use super::percentiles::{Ranks, Refined};
use super::{FittedStep, Preparation, Step, chain_text};

/// Most elements of a block.
const BLOCK_ELEMENTS: usize = 1 << 22;

/// Computes the statistics of a chain of steps over the training split, or takes them from an earlier run.
///
/// They are kept in the dataset folder ([`STATISTICS_FILE`](super::STATISTICS_FILE)), or in `cache` if nothing can be written there, and
/// computed anew when files have changed.
///
/// Errors: those of reading; a value outside the domain of a step; a constant channel.
pub fn fit(
    steps: &[Step],
    dataset: &Dataset,
    cache: Option<&Path>,
    threads: usize,
) -> Result<Preparation, DataError> {
    let mut kept = None;
    let mut fitted = Preparation::default();
    for (index, step) in steps.iter().enumerate() {
        let fit_step = || fit_statistics(*step, dataset, &fitted, threads.max(1));
        let next = match *step {
            Step::LogOnePlus => FittedStep::LogOnePlus,
            Step::Log => FittedStep::Log,
            Step::Scale { factor } => FittedStep::Scale { factor },
            Step::Clip { low, high } => FittedStep::Clip { low, high },
            Step::OneHot { classes } => FittedStep::OneHot { classes },
            Step::Standardize | Step::Percentiles { .. } => {
                check_samples(dataset)?;
                let chain = chain_text(&steps[..=index]);
                let kept = kept.get_or_insert_with(|| Kept::open(dataset, cache));
                match kept.find(&chain, *step) {
                    Some(found) => found,
                    None => {
                        let found = fit_step()?;
                        kept.add(&chain, &found);
                        found
                    }
                }
            }
        };
        fitted.steps.push(next);
    }
    Ok(fitted)
}

/// Errors: no sample to take statistics of.
fn check_samples(dataset: &Dataset) -> Result<(), DataError> {
    if dataset.samples(Split::Train) > 0 {
        return Ok(());
    }
    Err(DataError::BadValue {
        what: "training split for the statistics of `transform`",
        got: format!("none in {}", dataset.path().display()),
        expected: "a dataset with training samples, or weights that keep statistics".to_owned(),
    })
}

fn fit_statistics(
    step: Step,
    dataset: &Dataset,
    before: &Preparation,
    threads: usize,
) -> Result<FittedStep, DataError> {
    let walk = Walk {
        dataset,
        before,
        threads,
    };
    match step {
        Step::Percentiles { low, high } => walk.percentiles([low, high]),
        Step::Standardize
        | Step::LogOnePlus
        | Step::Log
        | Step::Scale { .. }
        | Step::Clip { .. }
        | Step::OneHot { .. } => walk.moments(),
    }
}

/// A pass over the training split, with values as the steps before make them.
struct Walk<'w> {
    dataset: &'w Dataset,
    before: &'w Preparation,
    threads: usize,
}

impl Walk<'_> {
    fn moments(&self) -> Result<FittedStep, DataError> {
        let found = self.visit(Vec::new, |all: &mut Vec<_>, block, channel, values| {
            let floats = values.iter().copied().map(f64::from);
            all.push(((block, channel), Moments::of(floats)));
        })?;
        let mut all: Vec<_> = found.into_iter().flatten().collect();
        all.sort_by_key(|&(key, _)| key);
        let mut channels = vec![Moments::default(); self.dataset.shape()[0]];
        for ((_, channel), moments) in all {
            channels[channel].join(moments);
        }
        let deviation = |moments: &Moments| (moments.squares / moments.count).sqrt();
        for (channel, moments) in channels.iter().enumerate() {
            // The square of a deviation at the limit of double precision is 0.
            if deviation(moments).recip().is_infinite() {
                return Err(self.constant(channel, moments.mean, "standardize"));
            }
        }
        Ok(FittedStep::Standardize {
            mean: channels.iter().map(|moments| moments.mean).collect(),
            standard_deviation: channels.iter().map(deviation).collect(),
        })
    }

    fn percentiles(&self, percentiles: [f64; 2]) -> Result<FittedStep, DataError> {
        let channels = self.dataset.shape()[0];
        let make = || vec![Ranks::default(); channels];
        let found = self.visit(make, |ranks, _, channel, values| ranks[channel].add(values))?;
        let ranks = Ranks::sum(found);
        let refined: Vec<Refined> = ranks
            .iter()
            .map(|ranks| ranks.refine(percentiles))
            .collect();
        let make = || refined.clone();
        let found = self.visit(make, |all, _, channel, values| all[channel].add(values))?;
        let refined = Refined::sum(found);
        let ends: Vec<[f64; 2]> = refined.iter().map(Refined::values).collect();
        for (channel, &[low, high]) in ends.iter().enumerate() {
            if low >= high {
                return Err(self.constant(channel, low, "percentiles"));
            }
        }
        Ok(FittedStep::Percentiles {
            percentiles,
            low: ends.iter().map(|&[low, _]| low).collect(),
            high: ends.iter().map(|&[_, high]| high).collect(),
        })
    }

    fn constant(&self, channel: usize, value: f64, step: &'static str) -> DataError {
        DataError::Constant {
            path: self.dataset.path().to_path_buf(),
            channel,
            value,
            step,
        }
    }

    /// Visits the values of each channel of each block. Gives what each thread has gathered.
    fn visit<A: Send>(
        &self,
        make: impl Fn() -> A + Sync,
        visit: impl Fn(&mut A, usize, usize, &[f32]) + Sync,
    ) -> Result<Vec<A>, DataError> {
        let blocks = self.blocks();
        let share = |thread: usize| {
            let mut gathered = make();
            let mut reader = self.dataset.reader(Split::Train);
            let (mut stored, mut values) = (Samples::new(self.dataset.dtype()), Vec::new());
            for (index, (sample, region)) in
                blocks.iter().enumerate().skip(thread).step_by(self.threads)
            {
                let read = self.read(&mut reader, (*sample, region), &mut stored, &mut values);
                if let Err(error) = read {
                    return (index, Err(error));
                }
                let count = values.len() / region[0].len();
                for (channel, values) in values.chunks_exact(count).enumerate() {
                    visit(&mut gathered, index, channel, values);
                }
            }
            (blocks.len(), Ok(gathered))
        };
        let results = on_threads(self.threads, self.threads, share);
        let (mut gathered, mut errors) = (Vec::new(), Vec::new());
        for (index, result) in results {
            match result {
                Ok(one) => gathered.push(one),
                Err(error) => errors.push((index, error)),
            }
        }
        // The first in the order of samples, whichever thread found it.
        match errors.into_iter().min_by_key(|&(index, _)| index) {
            Some((_, error)) => Err(error),
            None => Ok(gathered),
        }
    }

    /// Slabs of all samples, each of all channels.
    fn blocks(&self) -> Vec<(usize, Region4)> {
        let slabs = |sample: usize| {
            let [c, d, h, w] = self.dataset.shape_of(Split::Train, sample);
            let depth = (BLOCK_ELEMENTS / (c * h * w).max(1)).clamp(1, d);
            let starts = (0..d).step_by(depth);
            starts.map(move |start| (sample, [0..c, start..d.min(start + depth), 0..h, 0..w]))
        };
        let samples = 0..self.dataset.samples(Split::Train);
        samples.flat_map(slabs).collect()
    }

    fn read(
        &self,
        reader: &mut Reader,
        (sample, region): (usize, &Region4),
        stored: &mut Samples,
        values: &mut Vec<f32>,
    ) -> Result<(), DataError> {
        reader.read_volume(sample, region.clone(), stored)?;
        stored.write_f32(values);
        prepare(self.before, reader, sample, region, values)
    }
}

/// Prepares the values of a region of a sample.
///
/// Errors: a value that a step cannot take, with its file and position.
pub(crate) fn prepare(
    preparation: &Preparation,
    reader: &Reader,
    sample: usize,
    region: &Region4,
    values: &mut [f32],
) -> Result<(), DataError> {
    let channels = region[0].clone();
    preparation.apply(channels, values).map_err(|outside| {
        let [c, d, h, w] = slab::position(region, outside.at);
        DataError::Untrainable {
            path: reader.file(sample).to_path_buf(),
            key: reader.keys().volume.clone(),
            split: reader.split().name(),
            sample,
            name: reader.given_name(sample).map(Box::from),
            found: format!("at (C, D, H, W) = ({c}, {d}, {h}, {w}): {}", outside.fault).into(),
            expected: outside.expected.into(),
        }
    })
}
