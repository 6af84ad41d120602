//! Calibration of modeled computation by a table of layers' measured times, as in the ParaDL oracle.
//!
//! Source: technical report of October 2020 on the ParaDL oracle, its benchmark database of layers.

mod error;

pub use error::LayerTimesError;

use crate::StrategyChoice;
use crate::compute_scale::alone;
use crate::planning::PlanningError;
use crate::training::Training;
use partita_files::{line_at, read_piped_text};
use partita_graph::Graph;
use partita_oracle::{Costs, LayerFactors, PassFactors, ScaledCosts, SpeedFactors, TaskPrediction};
use partita_program::{Menu, Phase};
use partita_site::size::parse_seconds;
use partita_space::help::Expected;
use partita_space::{Seconds, near};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::{Spanned, Value};

/// Most samples of a measurement.
const SAMPLES_MAX: usize = 1 << 24;

/// Measured times of layers on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerTimes {
    file: PathBuf,
    /// Samples that were computed at once.
    samples: usize,
    layers: BTreeMap<String, LayerTime>,
}

/// Measured times of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LayerTime {
    /// Its line in the table.
    line: usize,
    /// Seconds of the forward and of the backward pass over all samples.
    passes: [Option<Seconds>; 2],
}

/// How modeled layers are scaled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerScale {
    /// The table.
    pub file: String,
    /// Samples of its measurements.
    pub samples: usize,
    /// Layers of the table.
    pub layers: usize,
    /// Measured forward and backward time of a sample, of all layers of the table.
    pub measured_seconds_per_sample: Seconds,
    /// The same as modeled from the machine file, at as many samples as a kernel has under the strategy.
    pub modeled_seconds_per_sample: Seconds,
    /// Share of the modeled computation that the table replaces.
    pub share: f64,
    /// The factors.
    #[serde(skip)]
    pub(crate) factors: LayerFactors,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTable {
    samples: Option<Spanned<Value>>,
    #[serde(default)]
    layers: BTreeMap<String, Spanned<Value>>,
}

/// The text of a table, for the lines of its faults.
struct TableReader<'a> {
    file: &'a Path,
    text: &'a str,
}

const PASSES: [(&str, Phase); 2] = [("forward", Phase::Forward), ("backward", Phase::Backward)];

impl LayerScale {
    /// The costs with scaled layers.
    pub(crate) fn scaled(&self, costs: Arc<dyn Costs>) -> Arc<dyn Costs> {
        let scaled = ScaledCosts::new(costs, SpeedFactors::default());
        Arc::new(scaled.with_layers(self.factors.clone()))
    }
}

impl LayerTimes {
    /// Reads a table: `samples`, and in `[layers]` the times of each, as in
    /// `conv1 = { forward = "1.2 ms", backward = "2.5 ms" }`.
    ///
    /// Errors: a file that cannot be read or is no such table, a value out of range.
    pub fn read(file: &Path) -> Result<Self, LayerTimesError> {
        let text = read_piped_text(file).map_err(|source| LayerTimesError::Unreadable {
            file: file.to_owned(),
            source,
        })?;
        let reader = TableReader { file, text: &text };
        let raw: RawTable = toml::from_str(&text).map_err(|error| LayerTimesError::Form {
            file: file.to_owned(),
            line: line_at(&text, error.span().map_or(0, |span| span.start)),
            fault: error.message().trim().replace('\n', "; "),
        })?;
        let samples = raw.samples.map_or(Ok(1), |value| reader.samples(&value))?;
        if raw.layers.is_empty() {
            return Err(reader.no_time(0, "layers".to_owned(), "empty".to_owned()));
        }
        let layers = raw.layers.into_iter().map(|(name, times)| {
            let time = LayerTime {
                line: line_at(&text, times.span().start),
                passes: reader.times(&name, &times)?,
            };
            Ok((name, time))
        });
        Ok(Self {
            file: file.to_owned(),
            samples,
            layers: layers.collect::<Result<_, LayerTimesError>>()?,
        })
    }

    /// Compares the table with the layers of a device alone, for as many samples as the strategy gives a kernel.
    ///
    /// A layer without a kernel of its own, because it is fused into one before it, counts with the nearest layer
    /// before it that has one.
    ///
    /// Errors: a layer that the model does not have, an invalid strategy, a missing cost.
    pub(crate) fn scale(
        &self,
        subject: (&Graph, &Training, &StrategyChoice),
        menu: &dyn Menu,
        costs: &dyn Costs,
    ) -> Result<LayerScale, PlanningError> {
        let (graph, _, _) = subject;
        let (prediction, batch) = alone(subject, menu, costs)?;
        let tasks = prediction.tasks.unwrap_or_default();
        let names: Vec<&str> = graph.nodes.iter().map(|node| node.name.as_str()).collect();
        self.check_names(graph, &names)?;
        let mut factors: BTreeMap<String, [f64; 2]> = BTreeMap::new();
        let (mut measured, mut replaced, mut modeled) = (0.0, 0.0, 0.0);
        for (at, (pass, phase)) in PASSES.into_iter().enumerate() {
            let of_layer = seconds_by_layer(&tasks, phase);
            modeled += of_layer.values().sum::<f64>();
            let mut given: BTreeMap<&str, f64> = BTreeMap::new();
            let mut host = None;
            for name in &names {
                if of_layer.contains_key(name) {
                    host = Some(*name);
                }
                let times = self.layers.get(*name);
                let time = times.and_then(|times| Some((times.line, times.passes[at]?)));
                let Some((line, time)) = time else { continue };
                let no_kernel = || LayerTimesError::NoKernel {
                    file: self.file.clone(),
                    line,
                    layer: (*name).to_owned(),
                    pass,
                };
                *given.entry(host.ok_or_else(no_kernel)?).or_default() += time.0;
            }
            for (name, seconds) in given {
                let seconds = seconds * batch as f64 / self.samples as f64;
                (measured, replaced) = (measured + seconds, replaced + of_layer[name]);
                let factor = seconds / of_layer[name];
                factors.entry(name.to_owned()).or_insert([1.0; 2])[at] = factor;
            }
        }
        let pass_factors = |(name, [forward, backward]): (String, [f64; 2])| {
            (name, PassFactors { forward, backward })
        };
        Ok(LayerScale {
            file: self.file.display().to_string(),
            samples: self.samples,
            layers: self.layers.len(),
            measured_seconds_per_sample: Seconds(measured / batch as f64),
            modeled_seconds_per_sample: Seconds(replaced / batch as f64),
            share: replaced / modeled,
            factors: LayerFactors(factors.into_iter().map(pass_factors).collect()),
        })
    }

    fn check_names(&self, graph: &Graph, names: &[&str]) -> Result<(), LayerTimesError> {
        let unknown = self
            .layers
            .iter()
            .filter(|(name, _)| !names.contains(&name.as_str()))
            .min_by_key(|(_, times)| times.line);
        unknown.map_or(Ok(()), |(layer, times)| {
            Err(LayerTimesError::NoLayer {
                file: self.file.clone(),
                line: times.line,
                model: graph.name.clone(),
                layer: layer.clone(),
                nearest: near(layer, names.iter().copied()).map(str::to_owned),
            })
        })
    }
}

impl TableReader<'_> {
    fn samples(&self, value: &Spanned<Value>) -> Result<usize, LayerTimesError> {
        let count = value.get_ref().as_integer();
        if let Some(samples) = count.and_then(|count| usize::try_from(count).ok())
            && (1..=SAMPLES_MAX).contains(&samples)
        {
            return Ok(samples);
        }
        let nearest = count.map_or(1, |count| count.clamp(1, SAMPLES_MAX as i64));
        let expected =
            Expected::new(format_args!("a whole number from 1 to {SAMPLES_MAX}")).nearest(nearest);
        let given = value.get_ref().to_string();
        Err(self.bad(value.span().start, "samples".to_owned(), given, expected))
    }

    /// The times of a layer in both passes.
    fn times(
        &self,
        name: &str,
        value: &Spanned<Value>,
    ) -> Result<[Option<Seconds>; 2], LayerTimesError> {
        let (offset, key) = (value.span().start, format!("layers.{name}"));
        let Some(table) = value.get_ref().as_table() else {
            return Err(self.no_time(offset, key, value.get_ref().to_string()));
        };
        if table.is_empty() {
            return Err(self.no_time(offset, key, "empty".to_owned()));
        }
        let names = PASSES.map(|(pass, _)| pass);
        if let Some(other) = table.keys().find(|key| !names.contains(&key.as_str())) {
            let near = near(other, names).map(|name| format!("`{name}`"));
            let expected = Expected::from("`forward` or `backward`").maybe_nearest(near);
            return Err(self.bad(
                offset,
                format!("{key}.{other}"),
                "an unknown key".to_owned(),
                expected,
            ));
        }
        let time = |pass: &str| {
            let read = |given: &Value| {
                let text = given
                    .as_str()
                    .map_or_else(|| given.to_string(), str::to_owned);
                parse_seconds(&text).map_err(|expected| {
                    self.bad(offset, format!("{key}.{pass}"), given.to_string(), expected)
                })
            };
            table.get(pass).map(read).transpose()
        };
        Ok([time(names[0])?, time(names[1])?])
    }

    /// No time is given where one must be.
    fn no_time(&self, offset: usize, key: String, given: String) -> LayerTimesError {
        let expected = "a time of at least one pass, like `conv1 = { forward = \"1.2 ms\" }`";
        self.bad(offset, key, given, expected.into())
    }

    fn bad(
        &self,
        offset: usize,
        key: String,
        given: String,
        expected: Expected,
    ) -> LayerTimesError {
        LayerTimesError::Value {
            file: self.file.to_owned(),
            line: line_at(self.text, offset),
            key,
            given,
            expected: Box::new(expected),
        }
    }
}

/// Seconds of the kernels of each layer in a pass.
fn seconds_by_layer(tasks: &[TaskPrediction], phase: Phase) -> BTreeMap<&str, f64> {
    let mut sums = BTreeMap::new();
    for task in tasks.iter().filter(|task| task.phase == phase) {
        *sums.entry(task.layer.as_str()).or_insert(0.0) += task.seconds.0;
    }
    sums.retain(|_, seconds| *seconds > 0.0);
    sums
}
