//! Losses and gradients of networks that PyTorch exported, as `.pt2` and as `.onnx`, equal PyTorch's, on one rank and split.
//!
//! `fixtures/imported/make.py` makes the files. `PARTITA_IMPORTED` names another folder of such files, whose table is
//! printed: what is imported, what is refused by name, and what is wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_graph::{Graph, Loss, Node, Op, ParameterRole, ScoreBias, initial_values};
use partita_import::{ImportError, Imported, Options, Weight, read, read_weights};
use partita_lower::Strategy;
use partita_program::{Dtype, Optimizer};
use partita_testkit::{ReferenceMenu, Samples, Setup, Stored, distance, reference_kernels, run};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Relative distance that is allowed.
const TOLERANCE: f64 = 1e-9;
/// Norm per element below which distances are relative to it.
const FLOOR: f64 = 1e-6;
/// How often a distance may be what PyTorch's own gradient moves by when its input is rounded otherwise.
const ROUNDINGS: f64 = 100.0;

/// Tensors in f64 with their shapes.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

fn tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |data: &[u8]| {
        let numbers = data.chunks_exact(8);
        numbers
            .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
            .collect()
    };
    file.tensors()
        .into_iter()
        .map(|(name, tensor)| (name, (tensor.shape().to_vec(), values(tensor.data()))))
        .collect()
}

/// What a network is judged by.
struct Case {
    imported: Imported,
    weights: BTreeMap<String, Weight>,
    found: Tensors,
}

impl Case {
    fn read(path: &Path) -> Result<Self, ImportError> {
        let options = Options {
            loss: Some(Loss::MeanSquaredError),
            output: Some(0),
        };
        let imported = read(path, &options)?;
        let weights = read_weights(path)?.into_iter();
        Ok(Self {
            imported,
            weights: weights.map(|one| (one.name.clone(), one)).collect(),
            found: tensors(&path.with_extension("safetensors")),
        })
    }

    fn is_training(&self) -> bool {
        self.found.keys().any(|name| name.starts_with("grad."))
    }

    /// A tensor of the state dict in the order of a parameter: kernels last in PyTorch, first here.
    fn ordered(&self, index: usize, values: &[f64]) -> Vec<f64> {
        let graph = &self.imported.graph;
        let parameter = &graph.parameters[index];
        let [d, h, w, channels, features] = parameter.shape;
        let reads = |node: &&Node| node.parameters.iter().any(|id| id.0 == index);
        let node = graph.nodes.iter().find(reads).unwrap();
        let has_rows = matches!(
            node.op,
            Op::PositionEmbedding { .. }
                | Op::Attention {
                    bias: Some(ScoreBias::Relative(_)),
                    ..
                }
        );
        if parameter.role != ParameterRole::Weight || has_rows {
            return values.to_vec();
        }
        let rows = rows_of(graph, index, channels);
        let mut ordered = Vec::with_capacity(values.len());
        for k in 0..d * h * w {
            for &row in &rows {
                let at = |feature: usize| values[(feature * channels + row) * d * h * w + k];
                ordered.extend((0..features).map(at));
            }
        }
        ordered
    }

    fn parameters(&self) -> Vec<Vec<f64>> {
        let all = self.imported.graph.parameters.iter().enumerate();
        all.map(|(index, parameter)| {
            if parameter.is_constant {
                return initial_values(parameter, 0);
            }
            self.ordered(index, &self.weights[self.original(index)].values)
        })
        .collect()
    }

    /// The name of a parameter in the state dict.
    fn original(&self, index: usize) -> &str {
        let parameter = &self.imported.graph.parameters[index];
        let layer = parameter.name.rsplit_once('.').unwrap().0;
        let word = match parameter.role {
            ParameterRole::Weight | ParameterRole::Gamma | ParameterRole::Slope => "weight",
            ParameterRole::Bias | ParameterRole::Beta => "bias",
            ParameterRole::RunningMean => "running_mean",
            ParameterRole::RunningVariance => "running_var",
        };
        let name = format!("{layer}.{word}");
        let mut stored = self.imported.stored.iter();
        &stored.find(|one| one.name == name).unwrap().original
    }

    /// The second input, a row for each of so many samples; empty where the network has none.
    fn features(&self, samples: usize) -> Vec<Vec<f64>> {
        let Some((shape, values)) = self.found.get("features") else {
            return Vec::new();
        };
        assert_eq!(shape[0], samples);
        values.chunks_exact(shape[1]).map(<[f64]>::to_vec).collect()
    }

    fn samples(&self) -> Arc<Samples> {
        let input = self.imported.graph.nodes[0].shape;
        let (shape, x) = &self.found["x"];
        let [d, h, w] = input.extent;
        let (_, target) = &self.found["target"];
        let last = self.imported.graph.nodes.last().unwrap();
        let output = self.imported.graph.node(last.inputs[0]).shape;
        // Channels first in PyTorch, last here.
        let positions = output.volume() / output.channels;
        let targets = target.chunks_exact(output.volume()).map(|one| {
            let at = |p: usize| (0..output.channels).map(move |c| one[c * positions + p]);
            (0..positions).flat_map(at).collect()
        });
        let volume = x.len() / shape[0];
        Arc::new(Samples {
            shape: [input.channels, d, h, w],
            values: x
                .chunks_exact(volume)
                .map(|one| Stored::F64(one.to_vec()))
                .collect(),
            targets: targets.collect(),
            features: self.features(shape[0]),
        })
    }

    /// What differs from PyTorch, in words; none if all is equal.
    fn compare(&self, strategy: &Strategy) -> Option<String> {
        let outcome = run(&Setup {
            graph: &self.imported.graph,
            strategy: strategy.clone(),
            dtype: Dtype::F64,
            menu: &ReferenceMenu,
            kernels: &reference_kernels(Dtype::F64),
            optimizer: Optimizer::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            decay_norms: true,
            ema: None,
            clip: None,
            learning_rate: 1.0,
            loss_scale: None,
            samples: self.samples(),
            parameters: self.parameters(),
            steps: usize::from(self.is_training()),
            seed: 0,
        });
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return Some(error.to_string()),
        };
        let loss = outcome
            .losses
            .first()
            .copied()
            .unwrap_or(outcome.evaluation[0]);
        let expected = self.found["loss"].1[0];
        if (loss - expected).abs() > TOLERANCE * expected.abs() {
            return Some(format!("the loss is {loss}, PyTorch's {expected}"));
        }
        let start = outcome.parameters.first()?;
        (0..self.imported.graph.parameters.len()).find_map(|index| {
            let name = &self.imported.graph.parameters[index].name;
            let key = format!("grad.{}", self.original_of(index)?);
            let expected = self.found.get(&key);
            let at = start.iter().position(|(other, _)| other == name)?;
            let pairs = start[at].1.iter().zip(&outcome.parameters.get(1)?[at].1);
            let gradient: Vec<f64> = pairs.map(|(before, after)| before - after).collect();
            let is_trained = self.imported.graph.parameters[index].role.is_trained();
            let expected = match expected {
                Some((_, expected)) => self.ordered(index, expected),
                // It has no gradient in PyTorch, and so none here.
                None if is_trained => vec![0.0; gradient.len()],
                None => return None,
            };
            let floor = FLOOR * (gradient.len() as f64).sqrt();
            let floor = floor.max(self.rounding(index) * ROUNDINGS / TOLERANCE);
            let far = distance(&gradient, &expected, floor);
            (far > TOLERANCE).then(|| format!("the gradient of {name} is off by {far:.1e}"))
        })
    }

    /// The norm of what PyTorch's gradient moves by when the last bit of its input does; 0 where the file lacks it. Of a
    /// gradient that is 0 but for rounding, as that of a bias before a norm, nothing else is known.
    fn rounding(&self, index: usize) -> f64 {
        let name = self.original_of(index).unwrap_or_default();
        let found = self.found.get(&format!("rounding.{name}"));
        found.map_or(0.0, |(_, norm)| norm[0])
    }

    /// One rank; samples, a dim of space, and layers on two ranks. The strategies under which all is equal, or what differs.
    fn judged(&self) -> Result<String, String> {
        let graph = &self.imported.graph;
        let batch = self.found["x"].0[0];
        let dims = ["width=2", "height=2", "depth=2"];
        let layers = graph.nodes.len();
        let stages = format!("stages=[{}|{}]", layers / 2, layers / 2);
        let groups: [&[&str]; 4] = [&["data=1"], &["data=2"], &dims, &["stages=[1|1]", &stages]];
        let mut judged = Vec::new();
        for texts in groups {
            let strategies = texts.iter().map(|text| text.parse().unwrap());
            // Stages are told apart by their parameters.
            let has_stages = |one: &Strategy| one.stages.is_empty() || !graph.parameters.is_empty();
            let mut possible = strategies
                .filter(|one: &Strategy| has_stages(one) && one.check(graph, batch).is_ok());
            let Some(strategy) = possible.next() else {
                judged.push(format!("no {}", texts[0]));
                continue;
            };
            if let Some(fault) = self.compare(&strategy) {
                return Err(format!("{strategy}: {fault}"));
            }
            judged.push(strategy.to_string());
        }
        Ok(judged.join(", "))
    }

    fn original_of(&self, index: usize) -> Option<&str> {
        let is_constant = self.imported.graph.parameters[index].is_constant;
        (!is_constant).then(|| self.original(index))
    }
}

/// The rows of a weight in PyTorch, for each row here: a flatten orders features channels first there.
fn rows_of(graph: &Graph, index: usize, channels: usize) -> Vec<usize> {
    let reads = |node: &&partita_graph::Node| node.parameters.iter().any(|id| id.0 == index);
    let node = graph.nodes.iter().find(reads).unwrap();
    let input = graph.node(node.inputs[0]);
    if input.op != Op::Flatten {
        return (0..channels).collect();
    }
    let shape = graph.node(input.inputs[0]).shape;
    let positions = shape.volume() / shape.channels;
    let row = |p: usize| (0..shape.channels).map(move |c| c * positions + p);
    (0..positions).flat_map(row).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|end| end == "pt2" || end == "onnx")
        })
        .collect();
    files.sort();
    files
}

#[test]
fn exported_modules_have_pytorchs_losses_and_gradients() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/imported");
    let files = files(&folder);
    assert!(files.len() >= 5 + 8, "{files:?}");
    for path in files {
        let case = Case::read(&path).unwrap();
        let strategies = ["data=1", "data=2", "width=2", "stages=[1|1]"];
        for text in strategies {
            let strategy: Strategy = text.parse().unwrap();
            if strategy
                .check(&case.imported.graph, case.found["x"].0[0])
                .is_err()
            {
                assert_ne!(text, "data=1", "{}", path.display());
                continue;
            }
            assert_eq!(case.compare(&strategy), None, "{} {text}", path.display());
        }
    }
}

/// All networks of torchvision, MONAI and timm, and the node tests of ONNX: hours.
#[test]
fn networks_of_others_are_equal_or_refused() {
    if env::var_os("PARTITA_TEST_LONG").is_none() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/imported/judge.sh");
    let status = Command::new(script)
        .arg(env::current_exe().unwrap())
        .status();
    match status.unwrap().code() {
        // What it needs cannot be installed.
        Some(75) => partita_testkit::not_run(
            "networks_of_others_are_equal_or_refused",
            "the packages of fixtures/imported/requirements.txt",
        ),
        code => assert_eq!(code, Some(0)),
    }
}

/// The table of a record, from files that are made by hand.
#[test]
fn networks_of_a_folder_are_imported_or_refused() {
    let Some(folder) = env::var_os("PARTITA_IMPORTED") else {
        return partita_testkit::not_run(
            "networks_of_a_folder_are_imported_or_refused",
            "PARTITA_IMPORTED",
        );
    };
    let mut wrong = 0;
    for path in files(Path::new(&folder)) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        match Case::read(&path) {
            Err(error) => println!("{name}: refused: {error}"),
            Ok(case) => match case.judged() {
                Ok(judged) => println!(
                    "{name}: imported, {} layers: {judged}",
                    case.imported.graph.nodes.len()
                ),
                Err(fault) => {
                    wrong += 1;
                    println!("{name}: WRONG: {fault}");
                }
            },
        }
    }
    assert_eq!(wrong, 0);
}
