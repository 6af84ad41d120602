use super::{data_error, write_summary};
use crate::args::MakingArgs;
use crate::error::CliError;
use crate::free_folder;
use crate::interrupt;
use indicatif::{ProgressBar, ProgressStyle};
use partita_data::{DataError, DatasetSpec, DatasetWriter, Split};
use partita_files::free_bytes;
use partita_space::Bytes;
use partita_synth::SynthError;
use std::collections::BTreeMap;
use std::io::Write;
use std::num::NonZeroUsize;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Samples that a thread makes before what was made is written.
const PER_WAVE: usize = 4;

/// A dataset in the making.
pub struct Making<'a> {
    args: &'a MakingArgs,
    /// What a sample is called, in the plural.
    noun: &'static str,
    samples: usize,
    splits: [Vec<u64>; 3],
}

impl<'a> Making<'a> {
    /// Shares `samples` out among training, validation and test; they are numbered through, so that
    /// no two splits have one in common.
    ///
    /// Errors: none is left to train on.
    pub fn new(args: &'a MakingArgs, noun: &'static str, samples: usize) -> Result<Self, CliError> {
        let of = |share: f64| (share * samples as f64).round() as usize;
        let (validation, test) = (of(args.validation), of(args.test));
        let Some(train @ 1..) = samples.checked_sub(validation + test) else {
            return Err(CliError::User(format!(
                "of {samples} {noun} {validation} are for validation and {test} for the test, which \
                 leaves none to train on; possible are shares whose sum is less than 1, nearest is \
                 `--validation 0 --test 0`"
            )));
        };
        let bounds = [0, train, train + validation, samples].map(|bound| bound as u64);
        let splits = [0, 1, 2].map(|split| (bounds[split]..bounds[split + 1]).collect());
        Ok(Self {
            args,
            noun,
            samples,
            splits,
        })
    }

    /// Numbers of the samples of training, validation and test.
    pub fn splits(&self) -> [Vec<u64>; 3] {
        self.splits.clone()
    }

    /// What the index file says under `[spec]` about every dataset.
    pub fn asked(&self, maker: &str) -> toml::Table {
        let mut asked = toml::Table::new();
        asked.insert("maker".to_owned(), format!("partita data {maker}").into());
        asked.insert(self.noun.to_owned(), integer(self.samples as u64));
        asked.insert("seed".to_owned(), integer(self.args.seed));
        asked
    }

    /// Makes the samples on all threads, writes them in their order, and shows the dataset.
    ///
    /// On Ctrl-C the writer is dropped, which removes what was written.
    pub fn make<T: Send + 'static>(
        &self,
        spec: &DatasetSpec,
        one: impl Fn(u64) -> Result<T, SynthError> + Clone + Send + 'static,
        append: impl Fn(&mut DatasetWriter, Split, T) -> Result<(), DataError>,
        out: &mut dyn Write,
    ) -> Result<(), CliError> {
        interrupt::listen()?;
        let path = &self.args.out;
        self.check_room(spec)?;
        let mut writer = DatasetWriter::create(path, spec).map_err(data_error)?;
        let available = || thread::available_parallelism().ok().map(NonZeroUsize::get);
        let threads = self.args.threads.or_else(available).unwrap_or(1);
        let bar = progress_bar(self.noun, self.samples);
        let samples: Vec<(Split, u64)> = Split::ALL
            .into_iter()
            .zip(&self.splits)
            .flat_map(|(split, numbers)| numbers.iter().map(move |&number| (split, number)))
            .collect();
        for wave in samples.chunks(threads * PER_WAVE) {
            let made = make_wave(&one, wave, threads);
            if interrupt::asked() {
                bar.abandon();
                return Err(CliError::Interrupted(format!(
                    "nothing is left at {}",
                    path.display()
                )));
            }
            for (&(split, _), sample) in wave.iter().zip(made?) {
                append(&mut writer, split, sample).map_err(data_error)?;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        writer.finish().map_err(data_error)?;
        write_summary(path, out)
    }
}

impl Making<'_> {
    /// Whether the disk has room for all samples, as far as it tells.
    fn check_room(&self, spec: &DatasetSpec) -> Result<(), CliError> {
        /// Headers of the files, and the index without the numbers of the samples.
        const BESIDE: u64 = 1 << 20;
        let path = &self.args.out;
        let free = free_bytes(free_folder::existing(path)).ok().flatten();
        let Bytes(each) = spec.sample_bytes();
        let needed = (each * self.samples as u64).saturating_add(BESIDE);
        let Some(free) = free.filter(|&free| free < needed) else {
            return Ok(());
        };
        let (noun, samples) = (self.noun, self.samples);
        let way_out = match free.saturating_sub(BESIDE) / each {
            0 => "possible is a folder on a file system with more room".to_owned(),
            most => format!(
                "possible are 1 to {most} {noun} there, nearest is `--{noun} {most}`, or a folder on a file \
                 system with more room"
            ),
        };
        Err(CliError::User(format!(
            "{samples} {noun} take {} at {}, and {} are free there; {way_out}",
            Bytes(needed),
            path.display(),
            Bytes(free)
        )))
    }
}

/// TOML has no integers above 2^63; such a seed is written as text.
pub fn integer(number: u64) -> toml::Value {
    match i64::try_from(number) {
        Ok(number) => number.into(),
        Err(_) => number.to_string().into(),
    }
}

fn progress_bar(noun: &str, samples: usize) -> ProgressBar {
    let bar = ProgressBar::new(samples as u64);
    let template = format!("{{bar:32}} {{pos}}/{{len}} {noun}, {{per_sec}}, {{eta}} left");
    // The template is fixed; were it faulty, the bar's own would do.
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// The samples of a wave, in its order whoever makes them. On a request to stop returns at once with
/// none: the threads are left to themselves, and end with the process.
fn make_wave<T: Send + 'static>(
    one: &(impl Fn(u64) -> Result<T, SynthError> + Clone + Send + 'static),
    wave: &[(Split, u64)],
    threads: usize,
) -> Result<Vec<T>, CliError> {
    let (sender, receiver) = mpsc::channel();
    for (share, part) in wave.chunks(wave.len().div_ceil(threads)).enumerate() {
        let (one, sender) = (one.clone(), sender.clone());
        let numbers: Vec<u64> = part.iter().map(|&(_, number)| number).collect();
        let make = move || {
            let made: Result<Vec<T>, SynthError> = numbers.into_iter().map(one).collect();
            // Nobody listens any more once a stop was asked for.
            let _ = sender.send((share, made));
        };
        let thread = thread::Builder::new().name(format!("sample {share}"));
        thread.spawn(make).map_err(|error| {
            let kind = "no thread could be started to make samples";
            CliError::Run(format!("{kind}: {error}; choose fewer threads"))
        })?;
    }
    drop(sender);
    let mut parts = BTreeMap::new();
    loop {
        match receiver.recv_timeout(Duration::from_millis(100)) {
            Ok((share, made)) => {
                parts.insert(share, made.map_err(|error| CliError::run(&error))?);
            }
            Err(RecvTimeoutError::Timeout) if interrupt::asked() => return Ok(Vec::new()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let samples: Vec<T> = parts.into_values().flatten().collect();
    if samples.len() < wave.len() {
        return Err(CliError::Run("a thread that made samples died".to_owned()));
    }
    Ok(samples)
}
