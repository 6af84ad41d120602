//! Common to all dataset makers: the output folder, the disk space, the splits.

use super::error::DatasetError;
use partita_data::{DatasetSpec, DatasetSummary, DatasetWriter, Split};
use partita_files::free_bytes;
use partita_formats::DataError;
use partita_site::{Context, Event, free_folder};
use partita_space::Bytes;
use partita_space::Help;
use partita_synth::SynthError;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Samples per thread between writes.
const SAMPLES_PER_ROUND: usize = 4;

/// The part of a request that is common to all dataset makers.
#[derive(Clone, Debug, PartialEq)]
pub struct MakeRequest {
    /// Output folder, new or empty.
    pub out: PathBuf,
    /// Seed: the same seed and request give the same bytes.
    pub seed: u64,
    /// Validation fraction.
    pub validation: f64,
    /// Test fraction.
    pub test: f64,
    /// Threads (default: number of cores).
    pub threads: Option<usize>,
}

impl MakeRequest {
    /// A tenth for validation and a tenth for the test.
    pub fn new(out: impl Into<PathBuf>, seed: u64) -> Self {
        Self {
            out: out.into(),
            seed,
            validation: 0.1,
            test: 0.1,
            threads: None,
        }
    }
}

/// Makes the samples of a dataset and writes it.
pub struct DatasetMaker<'a> {
    request: &'a MakeRequest,
    /// What a sample is called, in the plural.
    noun: &'static str,
    samples: usize,
    splits: [Vec<u64>; 3],
}

impl<'a> DatasetMaker<'a> {
    /// Splits `samples` into training, validation and test by consecutive numbers.
    ///
    /// Errors: no training samples.
    pub fn new(
        request: &'a MakeRequest,
        noun: &'static str,
        samples: usize,
    ) -> Result<Self, DatasetError> {
        let of = |fraction: f64| (fraction * samples as f64).round() as usize;
        let (validation, test) = (of(request.validation), of(request.test));
        let Some(train @ 1..) = samples.checked_sub(validation + test) else {
            return Err(DatasetError::NothingToTrainOn {
                noun,
                samples,
                validation,
                test,
            });
        };
        let bounds = [0, train, train + validation, samples].map(|bound| bound as u64);
        let splits = [0, 1, 2].map(|split| (bounds[split]..bounds[split + 1]).collect());
        Ok(Self {
            request,
            noun,
            samples,
            splits,
        })
    }

    /// Numbers of the samples of training, validation and test.
    pub fn splits(&self) -> [Vec<u64>; 3] {
        self.splits.clone()
    }

    /// The part of `[spec]` in the index file that all datasets share.
    pub fn asked(&self, maker: &str) -> toml::Table {
        let mut asked = toml::Table::new();
        asked.insert("maker".to_owned(), format!("partita data {maker}").into());
        asked.insert(self.noun.to_owned(), integer(self.samples as u64));
        asked.insert("seed".to_owned(), integer(self.request.seed));
        asked
    }

    /// Makes the samples on all threads, writes them in order, and summarizes the dataset.
    ///
    /// On cancellation the writer is dropped, which removes its files.
    pub fn make<T: Send + 'static>(
        &self,
        context: &Context,
        spec: &DatasetSpec,
        one: impl Fn(u64) -> Result<T, SynthError> + Clone + Send + 'static,
        append: impl Fn(&mut DatasetWriter, Split, T) -> Result<(), DataError>,
    ) -> Result<DatasetSummary, DatasetError> {
        context.report(Event::Writing);
        let path = &self.request.out;
        self.check_room(spec)?;
        let mut writer = DatasetWriter::create(path, spec)?;
        let available = || thread::available_parallelism().ok().map(NonZeroUsize::get);
        let threads = self.request.threads.or_else(available).unwrap_or(1);
        let (noun, total) = (self.noun, self.samples);
        let report = |made| context.report(Event::Samples { noun, made, total });
        report(0);
        let mut written = 0;
        let samples: Vec<(Split, u64)> = Split::ALL
            .into_iter()
            .zip(&self.splits)
            .flat_map(|(split, numbers)| numbers.iter().map(move |&number| (split, number)))
            .collect();
        for round in samples.chunks(threads * SAMPLES_PER_ROUND) {
            let made = make_round(context, &one, round, threads);
            if context.is_cancelled() {
                context.report(Event::SamplesStopped);
                let path = path.clone();
                return Err(DatasetError::Interrupted { path });
            }
            for (&(split, _), sample) in round.iter().zip(made?) {
                append(&mut writer, split, sample)?;
                written += 1;
                report(written);
            }
        }
        writer.finish()?;
        Ok(partita_data::inspect(path)?)
    }
}

impl DatasetMaker<'_> {
    /// Checks that the disk has room for all samples, if its free space is known.
    fn check_room(&self, spec: &DatasetSpec) -> Result<(), DatasetError> {
        /// Headers of the files, and the index without the numbers of the samples.
        const BESIDE: u64 = 1 << 20;
        let path = &self.request.out;
        let free = free_bytes(free_folder::existing(path)).ok().flatten();
        let Bytes(each) = spec.sample_bytes();
        let needed = (each * self.samples as u64).saturating_add(BESIDE);
        let Some(free) = free.filter(|&free| free < needed) else {
            return Ok(());
        };
        let (noun, samples) = (self.noun, self.samples);
        let way_out = match free.saturating_sub(BESIDE) / each {
            0 => Help::none().nearest("a folder on a file system with more room"),
            most => Help::possible(format_args!("1 to {most} {noun} there")).nearest(format_args!(
                "`--{noun} {most}`, or a folder on a file system with more room"
            )),
        };
        Err(DatasetError::NoRoom {
            noun,
            samples,
            needed: Bytes(needed),
            path: path.clone(),
            free: Bytes(free),
            way_out: Box::new(way_out),
        })
    }
}

/// TOML has no integers above 2^63; such a seed is written as text.
pub fn integer(number: u64) -> toml::Value {
    match i64::try_from(number) {
        Ok(number) => number.into(),
        Err(_) => number.to_string().into(),
    }
}

/// Makes the samples of a round on several threads, in order. On cancellation it returns none at once; the
/// threads end after their samples.
fn make_round<T: Send + 'static>(
    context: &Context,
    one: &(impl Fn(u64) -> Result<T, SynthError> + Clone + Send + 'static),
    round: &[(Split, u64)],
    threads: usize,
) -> Result<Vec<T>, DatasetError> {
    let (sender, receiver) = mpsc::channel();
    for (share, part) in round.chunks(round.len().div_ceil(threads)).enumerate() {
        let (one, sender) = (one.clone(), sender.clone());
        let numbers: Vec<u64> = part.iter().map(|&(_, number)| number).collect();
        let make = move || {
            let made: Result<Vec<T>, SynthError> = numbers.into_iter().map(one).collect();
            // After a cancellation there is no receiver.
            let _ = sender.send((share, made));
        };
        let thread = thread::Builder::new().name(format!("sample {share}"));
        let started = thread.spawn(make);
        started.map_err(|source| DatasetError::NoThread { source })?;
    }
    drop(sender);
    let mut parts = BTreeMap::new();
    loop {
        match receiver.recv_timeout(Duration::from_millis(100)) {
            Ok((share, made)) => {
                parts.insert(share, made.map_err(DatasetError::Sample)?);
            }
            Err(RecvTimeoutError::Timeout) if context.is_cancelled() => return Ok(Vec::new()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let samples: Vec<T> = parts.into_values().flatten().collect();
    if samples.len() < round.len() {
        return Err(DatasetError::ThreadDied);
    }
    Ok(samples)
}
