//! What the manifest of a checkpoint says about its training.

use super::super::curve::LossCurve;
use super::super::run::Run;
use super::error::ResumeError;
use partita_data::checkpoint::{Checkpoint, TensorEntry, TensorKind};
use partita_data::{Dataset, Split};
use partita_graph::{Graph, text};
use partita_session::Position;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    /// Global batch size.
    pub batch: usize,
    /// Seed of sample order, initial values and dropout.
    pub seed: u64,
    /// Optimizer with its constants.
    pub optimizer: String,
    /// Gradient clipping.
    pub clip: Option<f64>,
    /// Learning-rate schedule.
    pub schedule: String,
    /// Type of activations and parameters.
    pub precision: String,
    /// The strategy.
    pub strategy: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Best value of the metric `best` so far.
    pub best: Option<Best>,
    /// Where the training stood.
    pub position: Position,
    /// Losses of its steps up to there.
    #[serde(default)]
    pub curve: Option<LossCurve>,
}

/// The best checkpoint so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Name of the metric.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// Name of the checkpoint's folder.
    pub checkpoint: String,
}

/// What a run is, at its start.
pub fn identity(run: &Run, graph: &Graph, dataset: &Dataset, strategy: &str) -> TrainingState {
    TrainingState {
        partita: env!("CARGO_PKG_VERSION").to_owned(),
        model: run.model.clone(),
        model_text: text::print(graph),
        frozen: frozen(graph),
        data: run.data.display().to_string(),
        sample_shape: dataset.shape(),
        training_samples: dataset.samples(Split::Train),
        validation_samples: dataset.samples(Split::Validation),
        targets: dataset.targets().to_vec(),
        transform: run.samples.text(),
        samples: Some(run.samples.words()),
        batch: run.batch,
        seed: run.seed,
        optimizer: format!("{:?}", run.optimizer),
        clip: run.clip,
        schedule: format!("{:?}", run.schedule),
        precision: run.precision.name().to_owned(),
        strategy: strategy.to_owned(),
        ranks: run.ranks,
        epochs: run.epochs as u64,
        best: None,
        position: Position::default(),
        curve: None,
    }
}

impl TrainingState {
    /// The state in a checkpoint.
    ///
    /// Errors: `NoTraining`.
    pub fn read(checkpoint: &Checkpoint) -> Result<Self, ResumeError> {
        let value = checkpoint.manifest().training.clone();
        serde_json::from_value(value).map_err(|error| ResumeError::NoTraining {
            checkpoint: checkpoint.path().to_owned(),
            found: error.to_string(),
        })
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
        let debug = |value: &dyn std::fmt::Debug| format!("{value:?}");
        let kind = |optimizer: &str| optimizer.split(' ').next().unwrap_or_default().to_owned();
        let pairs = [
            ("batch", debug(&self.batch), debug(&now.batch)),
            ("seed", debug(&self.seed), debug(&now.seed)),
            (
                "optimizer.kind",
                kind(&self.optimizer),
                kind(&now.optimizer),
            ),
            ("freeze", debug(&self.frozen), debug(&now.frozen)),
            (
                "data (shape of samples)",
                debug(&self.sample_shape),
                debug(&now.sample_shape),
            ),
            (
                "data (training samples)",
                debug(&self.training_samples),
                debug(&now.training_samples),
            ),
            (
                "data (validation samples)",
                debug(&self.validation_samples),
                debug(&now.validation_samples),
            ),
            ("data (targets)", debug(&self.targets), debug(&now.targets)),
        ];
        let pairs = pairs.map(|(key, stored, asked)| (key.to_owned(), stored, asked));
        for (key, stored, asked) in pairs.into_iter().chain(self.other_samples(now)) {
            if stored != asked {
                return Err(ResumeError::OtherValue {
                    checkpoint: path.to_owned(),
                    key,
                    stored,
                    asked,
                });
            }
        }
        let soft = [
            ("optimizer", self.optimizer.clone(), now.optimizer.clone()),
            ("clip", debug(&self.clip), debug(&now.clip)),
            ("schedule", self.schedule.clone(), now.schedule.clone()),
            ("precision", self.precision.clone(), now.precision.clone()),
        ];
        let differs = soft
            .into_iter()
            .filter(|(_, stored, asked)| stored != asked)
            .map(|(key, stored, asked)| {
                format!("{key} was {stored} in the checkpoint and is {asked} from here on")
            });
        Ok(differs.collect())
    }
}

impl TrainingState {
    /// The first key of preparation and augmentation that differs, with its value here and now.
    fn other_samples(&self, now: &Self) -> Option<(String, String, String)> {
        let (Some(stored), Some(asked)) = (&self.samples, &now.samples) else {
            let pair = (self.transform.clone(), now.transform.clone());
            return Some(("transform".to_owned(), pair.0, pair.1));
        };
        let key = stored
            .keys()
            .chain(asked.keys())
            .find(|&key| stored.get(key) != asked.get(key))?;
        let text = |words: &BTreeMap<String, String>| {
            let word = words.get(key).cloned();
            word.unwrap_or_else(|| "(absent)".to_owned())
        };
        Some((key.clone(), text(stored), text(asked)))
    }
}

/// Names of the frozen parameters, in the order of the model.
fn frozen(graph: &Graph) -> Vec<String> {
    let frozen = graph
        .parameters
        .iter()
        .filter(|parameter| parameter.is_frozen);
    frozen.map(|parameter| parameter.name.clone()).collect()
}

/// The first tensor of the model that a checkpoint lacks or has in another shape, or the first that it has besides.
fn other_tensor(checkpoint: &Checkpoint, graph: &Graph) -> Option<String> {
    for parameter in &graph.parameters {
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
        let mut known = graph.parameters.iter();
        tensor.kind != TensorKind::Optimizer && !known.any(|it| it.name == tensor.name)
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
