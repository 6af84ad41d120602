//! What the manifest of a checkpoint says about its training.

use super::super::curve::LossCurve;
use super::super::preparation::{default_of, same_words};
use super::super::run::Run;
use super::super::run_file::words::{self, Words, inline};
use super::super::section::short;
use super::best::Best;
use super::config::BestMetric;
use super::error::ResumeError;
use partita_data::{Dataset, Split, TargetRecord};
use partita_graph::{Graph, text};
use partita_input::DataRecord;
use partita_session::{EpochReport, LossScaling, Position, is_number, number_fault};
use partita_site::PinningTimes;
use partita_weights::checkpoint::{Checkpoint, TensorEntry, TensorKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The part `training` of a manifest: the settings of the run, and where it stood.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingState {
    /// Version of Partita.
    pub partita: String,
    /// The requested model.
    pub model: String,
    /// Its text.
    pub model_text: String,
    /// Names of the parameters that are not trained.
    #[serde(default)]
    pub frozen: Vec<String>,
    /// Names of the running statistics that are not updated.
    #[serde(default)]
    pub frozen_statistics: Vec<String>,
    /// The dataset.
    pub data: String,
    /// Channels, depth, height and width of its samples.
    pub sample_shape: [usize; 4],
    /// Its training samples.
    pub training_samples: usize,
    /// Its validation samples.
    pub validation_samples: usize,
    /// Names of its targets or classes.
    pub targets: Vec<String>,
    /// Transform of input samples, as versions compare it that do not write `samples`.
    pub transform: String,
    /// Preparation and augmentation in the words of a run file.
    #[serde(default)]
    pub samples: Option<BTreeMap<String, String>>,
    /// Samples of an update.
    pub batch: usize,
    /// Parts of an update whose gradients are accumulated; 0 where a version did not write it.
    #[serde(default)]
    pub accumulate: usize,
    /// Whether the samples of an epoch that do not fill an update are left out.
    #[serde(default)]
    pub drop_last: bool,
    /// Seed of sample order, initial values and dropout.
    pub seed: u64,
    /// Optimizer with its constants.
    pub optimizer: String,
    /// Gradient clipping.
    pub clip: Option<f64>,
    /// Decay of the averages of the parameters, where they are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
    /// Learning-rate schedule.
    pub schedule: String,
    /// `[optimizer]` in the words of a run file.
    #[serde(default)]
    pub optimizer_words: Option<Words>,
    /// `[schedule]` in the words of a run file.
    #[serde(default)]
    pub schedule_words: Option<Words>,
    /// Type of activations and parameters.
    pub precision: String,
    /// The loss scale of the run file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// The measured times by which its kernels are pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<PinningTimes>,
    /// The strategy.
    pub strategy: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// The data of the training: statistics and targets.
    #[serde(default)]
    pub data_record: DataRecord,
    /// Best value of the metric `best` so far.
    pub best: Option<Best>,
    /// Where the training stood.
    pub position: Position,
    /// Losses of its steps up to there.
    #[serde(default)]
    pub curve: Option<LossCurve>,
}

/// What a run is, at its start.
pub fn identity(run: &Run, graph: &Graph, dataset: &Dataset, strategy: &str) -> TrainingState {
    TrainingState {
        partita: env!("CARGO_PKG_VERSION").to_owned(),
        model: run.model.name().to_owned(),
        model_text: text::print(graph),
        frozen: frozen(graph, true),
        frozen_statistics: frozen(graph, false),
        data: run.data.display().to_string(),
        sample_shape: dataset.shape(),
        training_samples: dataset.samples(Split::Train),
        validation_samples: dataset.samples(Split::Validation),
        targets: dataset.targets().to_vec(),
        transform: run.samples.text(),
        samples: Some(run.samples.words()),
        batch: run.batch,
        accumulate: run.accumulate,
        drop_last: run.drop_last,
        seed: run.seed,
        optimizer: format!("{:?}", run.optimizer),
        clip: run.clip,
        ema: run.ema,
        schedule: format!("{:?}", run.schedule),
        optimizer_words: Some(words::optimizer(&run.optimizer, run.decay_norms, run.clip)),
        schedule_words: Some(words::schedule(&run.schedule)),
        precision: run.precision.name().to_owned(),
        loss_scale: match run.loss_scaling {
            Some(LossScaling::Fixed(scale)) => Some(scale),
            Some(LossScaling::Dynamic) | None => None,
        },
        kernels: None,
        strategy: strategy.to_owned(),
        ranks: run.ranks,
        epochs: run.epochs as u64,
        data_record: DataRecord::default(),
        best: None,
        position: Position::default(),
        curve: None,
    }
}

impl TrainingState {
    /// The state in a checkpoint.
    ///
    /// Errors: `NoTraining`; `Damaged` where its numbers are of no training, whatever the checksum says.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self, ResumeError> {
        let value = checkpoint.manifest().training.clone();
        let read = serde_json::from_value(value).map_err(|error| ResumeError::NoTraining {
            checkpoint: checkpoint.path().to_owned(),
            found: error.to_string(),
        });
        let mut state: Self = read?;
        if let Some(fault) = state.fault() {
            return Err(ResumeError::of_numbers(checkpoint.path(), &fault));
        }
        if let Some(best) = state.best.as_mut().filter(|best| best.epoch == 0) {
            let mut metrics = BestMetric::CHOICES.into_iter();
            let metric = metrics.find(|(name, _)| *name == best.metric);
            let is_best = |epoch: &&EpochReport| {
                metric.and_then(|(_, metric)| metric.value(epoch)) == Some(best.value)
            };
            let found = state.position.epochs.iter().find(is_best);
            best.epoch = found.map_or(0, |epoch| epoch.epoch + 1);
        }
        Ok(state)
    }

    /// What is wrong with its numbers; `None` if they can be of a training.
    fn fault(&self) -> Option<String> {
        let best = self.best.as_ref().map(|best| best.value);
        let best = best.filter(|value| !is_number(*value));
        let of_curve = || self.curve.as_ref().and_then(LossCurve::fault);
        let beyond = || {
            let (done, all) = (self.position.epoch, self.epochs);
            (done > all).then(|| format!("{done} epochs are done of {all}"))
        };
        best.map(|value| number_fault("the best value of the metric", value))
            .or_else(|| self.position.fault())
            .or_else(of_curve)
            .or_else(beyond)
    }

    /// Checks that a run may go on from this state, and gives warnings of what differs.
    ///
    /// Errors: `OtherModel`, `OtherValue`.
    pub fn check(
        &self,
        checkpoint: &Checkpoint,
        graph: &Graph,
        now: &Self,
    ) -> Result<Vec<String>, ResumeError> {
        let path = checkpoint.path();
        if let Some(difference) = other_tensor(checkpoint, graph)
            .or_else(|| other_line(&self.model_text, &now.model_text))
        {
            return Err(ResumeError::OtherModel {
                checkpoint: path.to_owned(),
                difference,
            });
        }
        self.check_data(path, now)?;
        let debug = |value: &dyn std::fmt::Debug| Some(format!("{value:?}"));
        // An update may be made of other parts, but not of other samples.
        let batch = match self.accumulate.max(now.accumulate) {
            0 | 1 => "batch",
            _ => "batch * accumulate",
        };
        let pairs = [
            (batch, debug(&self.batch), debug(&now.batch)),
            ("seed", debug(&self.seed), debug(&now.seed)),
            ("drop_last", debug(&self.drop_last), debug(&now.drop_last)),
            ("freeze", debug(&self.frozen), debug(&now.frozen)),
            (
                "freeze_statistics",
                debug(&!self.frozen_statistics.is_empty()),
                debug(&!now.frozen_statistics.is_empty()),
            ),
            (
                "freeze",
                debug(&self.frozen_statistics),
                debug(&now.frozen_statistics),
            ),
        ];
        let pairs = pairs.map(|(key, stored, asked)| (key.to_owned(), stored, asked));
        let others = [
            self.other_optimizer(now),
            self.other_averages(now),
            self.other_samples(now),
        ];
        for (key, stored, asked) in pairs.into_iter().chain(others.into_iter().flatten()) {
            if stored != asked {
                return Err(ResumeError::OtherValue {
                    checkpoint: path.to_owned(),
                    key,
                    stored,
                    asked,
                });
            }
        }
        Ok(self.warnings(now))
    }

    /// Errors: `OtherData`.
    fn check_data(&self, checkpoint: &Path, now: &Self) -> Result<(), ResumeError> {
        let shape = |[c, d, h, w]: [usize; 4]| {
            format!("samples of {c} channel(s) and D, H, W = {d}, {h}, {w}")
        };
        let samples = |count: usize, split: &str| format!("{count} {split} samples");
        let pairs = [
            (shape(self.sample_shape), shape(now.sample_shape)),
            (
                samples(self.training_samples, "training"),
                samples(now.training_samples, "training"),
            ),
            (
                samples(self.validation_samples, "validation"),
                samples(now.validation_samples, "validation"),
            ),
            (
                format!("the targets {:?}", self.targets),
                format!("the targets {:?}", now.targets),
            ),
        ];
        let differ = pairs.into_iter().find(|(stored, asked)| stored != asked);
        match differ.or_else(|| self.other_ranges(now)) {
            Some((stored, asked)) => Err(ResumeError::OtherData {
                checkpoint: checkpoint.to_owned(),
                was: self.data.clone(),
                stored,
                data: now.data.clone(),
                asked,
            }),
            None => Ok(()),
        }
    }

    /// The ranges of the targets here and now, if they differ.
    fn other_ranges(&self, now: &Self) -> Option<(String, String)> {
        let [own, other] = [self, now].map(|state| state.data_record.targets.as_ref());
        let (own, other) = own.zip(other)?;
        let text = |record: &TargetRecord| {
            let ends = record.ranges.iter().map(|range| match range {
                Some(range) => format!("{range:?}"),
                None => "unknown".to_owned(),
            });
            let ends: Vec<String> = ends.collect();
            format!("targets of the ranges {}", ends.join(", "))
        };
        (!own.has_ranges_of(other)).then(|| (text(own), text(other)))
    }

    /// What may differ, and does.
    fn warnings(&self, now: &Self) -> Vec<String> {
        let scale = |state: &Self| match state.loss_scale {
            Some(scale) => scale.to_string(),
            None => "not set".to_owned(),
        };
        let ema = |state: &Self| state.ema.map_or_else(|| "not set".to_owned(), short);
        let of_types = [
            ("precision", [self, now].map(|it| it.precision.clone())),
            ("loss_scale", [self, now].map(scale)),
            ("ema", [self, now].map(ema)),
        ];
        let of_types = of_types
            .into_iter()
            .filter(|(_, [stored, asked])| stored != asked)
            .map(|(key, [stored, asked])| (key.to_owned(), stored, asked));
        let told = match (
            self.optimizer_words
                .as_ref()
                .zip(now.optimizer_words.as_ref()),
            self.schedule_words
                .as_ref()
                .zip(now.schedule_words.as_ref()),
        ) {
            (Some(optimizer), Some(schedule)) => [
                differences("optimizer", optimizer),
                differences("schedule", schedule),
            ]
            .concat(),
            // A checkpoint of a version that wrote no words.
            (_, _) => {
                let soft = [
                    ("optimizer", &self.optimizer, &now.optimizer),
                    ("schedule", &self.schedule, &now.schedule),
                ];
                let differ = soft
                    .into_iter()
                    .filter(|(_, stored, asked)| stored != asked);
                let text = |text: &String| format!("({text})");
                differ
                    .map(|(key, stored, asked)| (key.to_owned(), text(stored), text(asked)))
                    .collect()
            }
        };
        let told = told.into_iter().chain(of_types);
        let mut told: Vec<String> = told
            .map(|(key, stored, asked)| {
                format!("`{key}` was {stored} in the checkpoint and is {asked} from here on")
            })
            .collect();
        let follows = |schedule: &str| schedule.contains("epochs: ");
        if self.epochs != now.epochs && follows(&now.schedule) && follows(&self.schedule) {
            told.push(format!(
                "`epochs` was {} in the checkpoint and is {} from here on, which the schedule follows",
                self.epochs, now.epochs
            ));
        }
        told
    }
}

/// The keys of a table that differ with their values, or the whole table where it has other keys.
fn differences(table: &str, (stored, asked): (&Words, &Words)) -> Vec<(String, String, String)> {
    let same_keys = stored
        .iter()
        .map(|it| &it.0)
        .eq(asked.iter().map(|it| &it.0));
    if !same_keys {
        return vec![(table.to_owned(), inline(stored), inline(asked))];
    }
    let pairs = stored
        .iter()
        .zip(asked)
        .filter(|(stored, asked)| stored != asked);
    pairs
        .map(|((key, stored), (_, asked))| {
            (format!("{table}.{key}"), stored.clone(), asked.clone())
        })
        .collect()
}

/// A key with its value in the checkpoint and now; without a value where it is absent.
type Pair = (String, Option<String>, Option<String>);

impl TrainingState {
    /// What must stay of the optimizer, as its moments depend on it.
    fn other_optimizer(&self, now: &Self) -> Option<Pair> {
        let rule = |state: &Self| {
            state
                .optimizer
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_lowercase()
        };
        let words = self
            .optimizer_words
            .as_ref()
            .zip(now.optimizer_words.as_ref());
        let Some((stored, asked)) = words else {
            let (stored, asked) = (rule(self), rule(now));
            return Some(("optimizer.kind".to_owned(), Some(stored), Some(asked)));
        };
        let value = |words: &Words, key: &str| {
            let found = words.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.clone())
        };
        let differs = |key: &&str| value(stored, key) != value(asked, key);
        let no_velocity = value(stored, "momentum").is_some_and(|momentum| momentum == "0");
        let keys = ["kind", "nesterov", "momentum"];
        let keys = &keys[..if no_velocity { 3 } else { 2 }];
        let key = keys.iter().copied().find(differs)?;
        Some((
            format!("optimizer.{key}"),
            value(stored, key),
            value(asked, key),
        ))
    }

    /// Averages that are kept here or now alone: they cannot begin or end on the way.
    fn other_averages(&self, now: &Self) -> Option<Pair> {
        let differ = self.ema.is_some() != now.ema.is_some();
        let [stored, asked] = [self.ema, now.ema].map(|decay| decay.map(short));
        differ.then(|| ("ema".to_owned(), stored, asked))
    }

    /// The first key of preparation and augmentation that differs, with its value here and now.
    fn other_samples(&self, now: &Self) -> Option<Pair> {
        let (Some(stored), Some(asked)) = (&self.samples, &now.samples) else {
            let pair = (self.transform.clone(), now.transform.clone());
            return Some(("transform".to_owned(), Some(pair.0), Some(pair.1)));
        };
        let value = |words: &BTreeMap<String, String>, key: &str| {
            let word = words.get(key).cloned();
            word.or_else(|| default_of(key).map(str::to_owned))
        };
        let differs = |key: &&String| match (value(stored, key), value(asked, key)) {
            (Some(stored), Some(asked)) => !same_words(&stored, &asked),
            (stored, asked) => stored != asked,
        };
        let key = stored.keys().chain(asked.keys()).find(differs)?;
        Some((key.clone(), value(stored, key), value(asked, key)))
    }
}

/// Names of the frozen parameters or running statistics, in the order of the model.
fn frozen(graph: &Graph, of_parameters: bool) -> Vec<String> {
    let frozen = graph
        .stored_parameters()
        .filter(|parameter| parameter.is_frozen && parameter.role.is_trained() == of_parameters);
    frozen.map(|parameter| parameter.name.clone()).collect()
}

/// The first tensor of the model that a checkpoint lacks or has in another shape, or the first that it has besides.
fn other_tensor(checkpoint: &Checkpoint, graph: &Graph) -> Option<String> {
    for parameter in graph.stored_parameters() {
        let Ok(stored) = checkpoint.tensor(&parameter.name) else {
            let name = &parameter.name;
            return Some(format!("it has no tensor `{name}`, which the model has"));
        };
        if stored.shape != parameter.shape {
            return Some(format!(
                "its tensor `{}` has the shape {:?}, and that of the model has {:?}",
                parameter.name, stored.shape, parameter.shape
            ));
        }
    }
    let is_unknown = |tensor: &&TensorEntry| {
        let mut known = graph.stored_parameters();
        let is_of_model = match tensor.kind {
            TensorKind::Parameter | TensorKind::State => true,
            TensorKind::Optimizer | TensorKind::Average => false,
        };
        is_of_model && !known.any(|it| it.name == tensor.name)
    };
    let unknown = checkpoint.tensors().iter().find(is_unknown);
    unknown.map(|tensor| format!("it has a tensor `{}`, which the model has not", tensor.name))
}

fn other_line(stored: &str, asked: &str) -> Option<String> {
    let (mut stored, mut asked) = (stored.lines(), asked.lines());
    loop {
        match (stored.next(), asked.next()) {
            (None, None) => return None,
            // The name of the model may change.
            (Some(a), Some(b))
                if a == b || (a.starts_with("model ") && b.starts_with("model ")) => {}
            (a, b) => {
                let text = |line: Option<&str>| line.unwrap_or("(nothing)").to_owned();
                return Some(format!(
                    "it has the line `{}`, and the model has `{}`",
                    text(a),
                    text(b)
                ));
            }
        }
    }
}
