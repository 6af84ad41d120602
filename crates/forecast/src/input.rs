//! Where the samples of a step come from, and whether the host memory holds a dataset.

mod error;

pub use error::InputError;

use crate::planning::{EpochError, PlanningError};
use crate::training::Training;
use partita_cluster::{Machine, ProcessorKind, Software};
use partita_graph::{Graph, TargetKind};
use partita_space::Bytes;
use serde::Serialize;
use std::fmt;

/// Share of a node's host memory that samples may fill beside devices with a memory of their own: the rest is for the
/// system, libraries and pinned buffers.
const SHARE_BESIDE_DEVICES: f64 = 0.8;

/// The same where ranks compute in it.
const SHARE_BESIDE_RANKS: f64 = 0.5;

/// What is requested of the input of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InputRequest {
    /// Where samples come from (default: the host memory of the ranks where the software keeps samples there and they
    /// fit, else files).
    pub choice: Option<IoChoice>,
    /// Samples of the dataset (default: those of the dataset of the model's publication, if it is known).
    pub dataset_samples: Option<usize>,
}

impl InputRequest {
    /// Input takes no time.
    pub const IGNORED: Self = Self {
        choice: Some(IoChoice::None),
        dataset_samples: None,
    };

    /// Refuses a dataset with fewer samples than a step computes.
    fn check(self, batch: usize) -> Result<(), PlanningError> {
        let short = self.dataset_samples.filter(|samples| *samples < batch);
        short.map_or(Ok(()), |samples| {
            let validation = 0;
            Err(PlanningError::Epoch(EpochError::ShortDataset {
                samples,
                validation,
                batch,
            }))
        })
    }
}

/// A choice of [`InputSource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoChoice {
    /// The host memory of the ranks.
    Store,
    /// Files.
    Files,
    /// Loaders, in processes of their own.
    Loaders,
    /// Input takes no time.
    None,
}

/// Where the samples of a step come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSource {
    /// Not predicted.
    Ignored,
    /// The file system, in every epoch.
    FileSystem,
    /// The host memory of the ranks, after the first epoch.
    DataStore,
    /// Loaders, in processes of their own. The time of a step leaves them out, and that of an epoch does not.
    Loaders,
}

impl InputSource {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ignored => "ignored",
            Self::FileSystem => "read from the file system in every epoch",
            Self::DataStore => {
                "sent from the host memory of the ranks, into which the first epoch reads it"
            }
            Self::Loaders => {
                "sent by loaders; the iteration does not wait for them, the epoch does"
            }
        }
    }

    /// Whether it is left out of the time of a step.
    pub fn is_left_out(self) -> bool {
        match self {
            Self::Ignored | Self::Loaders => true,
            Self::FileSystem | Self::DataStore => false,
        }
    }

    /// A software that does so.
    pub fn applied(self, software: &Software) -> Software {
        let mut software = software.clone();
        match self {
            Self::Ignored | Self::Loaders => {}
            Self::FileSystem => software.data_store.value = false,
            Self::DataStore => software.data_store.value = true,
        }
        software
    }
}

/// The input of a step on a machine file.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Where samples come from.
    pub source: InputSource,
    /// The dataset, unless input is ignored.
    pub dataset: Option<Dataset>,
    /// What each rank keeps of it in the memory in which it computes.
    pub kept: Bytes,
}

/// A dataset beside the host memory of the nodes that train with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dataset {
    /// Where the number of samples is from.
    pub basis: DatasetBasis,
    /// Its samples, if their number is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    /// A sample with its target, as it is stored.
    pub bytes_per_sample: Bytes,
    /// All of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Bytes>,
    /// What the host memory of all nodes of the ranks holds of samples, if the machine file says its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_held_max: Option<Bytes>,
    /// Least ranks whose nodes hold it, if both are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks_min: Option<usize>,
}

/// Where the number of samples of a dataset is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DatasetBasis {
    /// The request.
    Given,
    /// The publication of the model.
    Published,
    /// The publication of the model, its samples cut to the size of those of the model.
    Cut,
    /// It is not known, and taken to fit.
    Unknown,
}

impl Dataset {
    /// The dataset of a training on a machine.
    pub fn new(
        graph: &Graph,
        training: &Training,
        machine: &Machine,
        samples: Option<usize>,
    ) -> Self {
        let published = || published_samples(&graph.name);
        let (basis, samples) = match (samples, published()) {
            (Some(given), _) => (DatasetBasis::Given, Some(given)),
            (None, Some(whole)) if whole.parts > 1 => (DatasetBasis::Cut, Some(whole.count())),
            (None, Some(whole)) => (DatasetBasis::Published, Some(whole.count())),
            (None, None) => (DatasetBasis::Unknown, None),
        };
        let bytes_per_sample = sample_bytes(graph, training);
        let bytes = samples.map(|count| bytes_per_sample * count as u64);
        let per_node = held_by_node(machine);
        let per_node_devices = machine.devices_per_node.value;
        let nodes = training.ranks.div_ceil(per_node_devices) as u64;
        let ranks_min = bytes.zip(per_node).map(|(bytes, node)| {
            let nodes = bytes.0.div_ceil(node.0.max(1)).max(1) as usize;
            nodes.saturating_mul(per_node_devices)
        });
        Self {
            basis,
            samples,
            bytes_per_sample,
            bytes,
            bytes_held_max: per_node.map(|node| node * nodes),
            ranks_min,
        }
    }

    /// Whether the nodes hold it; what is not known is taken to fit.
    pub fn fits(&self) -> bool {
        match (self.bytes, self.bytes_held_max) {
            (Some(bytes), Some(held)) => bytes <= held,
            (None, _) | (_, None) => true,
        }
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(samples), Some(bytes)) = (self.samples, self.bytes) else {
            let each = self.bytes_per_sample;
            return write!(
                f,
                "of unknown size, taken to fit the host memory; `--dataset-samples N` says how many samples of {each}"
            );
        };
        let basis = match self.basis {
            DatasetBasis::Given | DatasetBasis::Unknown => "",
            DatasetBasis::Published => " (as published)",
            DatasetBasis::Cut => " (as published, cut to the size of the model's)",
        };
        write!(f, "{samples} samples{basis}, {bytes}; ")?;
        match (self.bytes_held_max, self.ranks_min) {
            (Some(held), Some(ranks)) => write!(
                f,
                "the host memory of these nodes holds {held}, that of {ranks} ranks would be enough"
            ),
            (None, _) | (_, None) => write!(
                f,
                "the machine file does not say `host_memory`, so it is taken to fit"
            ),
        }
    }
}

impl Input {
    /// The input of a training with this software on a machine.
    ///
    /// Errors: fewer samples than a step computes, a requested host memory that does not hold the dataset, files where
    /// the machine file does not say how fast they are read.
    pub fn new(
        graph: &Graph,
        training: &Training,
        (machine, software): (&Machine, &Software),
        request: InputRequest,
    ) -> Result<Self, PlanningError> {
        request.check(training.batch)?;
        let dataset = Dataset::new(graph, training, machine, request.dataset_samples);
        let source = match request.choice {
            Some(IoChoice::None) => InputSource::Ignored,
            Some(IoChoice::Loaders) => InputSource::Loaders,
            Some(IoChoice::Files) => InputSource::FileSystem,
            Some(IoChoice::Store) => InputSource::DataStore,
            None if software.data_store.value && dataset.fits() => InputSource::DataStore,
            None => InputSource::FileSystem,
        };
        let can_come = match source {
            InputSource::FileSystem => machine.io.is_some(),
            InputSource::DataStore => dataset.fits(),
            InputSource::Loaders | InputSource::Ignored => true,
        };
        if !can_come {
            return Err(InputError::new(training.batch, machine, dataset).into());
        }
        let kept = match (source, machine.device.kind) {
            (InputSource::DataStore, ProcessorKind::Cpu) => {
                let bytes = dataset.bytes.unwrap_or(Bytes(0));
                Bytes(bytes.0.div_ceil(training.ranks as u64))
            }
            (InputSource::DataStore, ProcessorKind::Gpu)
            | (InputSource::FileSystem | InputSource::Loaders | InputSource::Ignored, _) => {
                Bytes(0)
            }
        };
        Ok(Self {
            source,
            dataset: (!source.is_left_out()).then_some(dataset),
            kept,
        })
    }

    /// The input on the local machine, where reads of files and copies in memory are measured. Of samples in memory their
    /// size is not known.
    pub fn local(request: InputRequest) -> Self {
        let source = match request.choice {
            Some(IoChoice::None) => InputSource::Ignored,
            Some(IoChoice::Loaders) => InputSource::Loaders,
            Some(IoChoice::Files) | None => InputSource::FileSystem,
            Some(IoChoice::Store) => InputSource::DataStore,
        };
        Self {
            source,
            dataset: None,
            kept: Bytes(0),
        }
    }
}

/// What the host memory of a node holds of samples.
fn held_by_node(machine: &Machine) -> Option<Bytes> {
    let share = match machine.device.kind {
        ProcessorKind::Gpu => SHARE_BESIDE_DEVICES,
        ProcessorKind::Cpu => SHARE_BESIDE_RANKS,
    };
    let memory = machine.host_memory.as_ref()?.value;
    Some(Bytes((memory.0 as f64 * share) as u64))
}

/// Stored bytes of a sample and its target.
fn sample_bytes(graph: &Graph, training: &Training) -> Bytes {
    let sample = graph.nodes[0].shape.volume() as u64;
    let last = &graph.nodes[graph.nodes.len() - 1];
    let output = graph.node(last.inputs[0]).shape;
    let target = match last.op.loss().map(partita_graph::Loss::target) {
        Some(TargetKind::Classes) => output.extent.iter().product::<usize>(),
        Some(TargetKind::Values) | None => output.volume(),
    };
    Bytes(sample * training.samples.dtype.size() as u64 + 4 * target as u64)
}

/// Samples of the dataset that a model was published with, training and validation together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedSamples {
    /// As published.
    whole: usize,
    /// Samples of the model's size that each of them is cut into.
    parts: usize,
}

impl PublishedSamples {
    /// Samples of the model's size.
    pub fn count(self) -> usize {
        self.whole * self.parts
    }
}

/// Samples of the dataset of a model of the zoo.
///
/// Sources: Oyama et al. for `cosmoflow` (10,017 universes of 512^3, cut into smaller volumes for smaller models) and
/// `unet3d` (LiTS, 131 scans); ScaFFold for `scaffold` (241 volumes of fractals); ILSVRC 2012 for models of images, with
/// 1,281,167 and 50,000; CIFAR-10 for `resnet110v2` and its like, with 50,000 and 10,000.
pub fn published_samples(model: &str) -> Option<PublishedSamples> {
    let (family, rest) = model.split_once('@')?;
    let size: usize = rest.split('+').next()?.parse().ok()?;
    let (whole, parts) = match family {
        "cosmoflow" => (10_017, (512 / size.clamp(1, 512)).pow(3)),
        "unet3d" => (131, 1),
        "scaffold" => (241, 1),
        "resnet110v2" | "resnet164v2" | "resnet1001v2" => (60_000, 1),
        "alexnet" | "vgg16" | "resnet18" | "resnet50" | "resnet101" | "resnet152"
        | "densenet121" | "inceptionv3" => (1_331_167, 1),
        _ if family.starts_with("amoebanetd") => (1_331_167, 1),
        _ => return None,
    };
    Some(PublishedSamples { whole, parts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    fn input(ranks: usize, machine: &str, request: InputRequest) -> Result<Input, PlanningError> {
        let training = Training::new("cosmoflow@512", ranks, 1);
        let graph = model::resolve(&training.model).unwrap();
        let machine = Machine::load(machine, &[]).unwrap();
        let software = Software::load(Software::OWN, &[]).unwrap();
        Input::new(&graph, &training, (&machine, &software), request)
    }

    fn with(choice: Option<IoChoice>, samples: usize) -> InputRequest {
        InputRequest {
            choice,
            dataset_samples: Some(samples),
        }
    }

    /// 204.8 GB of 256 GB a node hold 190 samples of 1 GiB and 16 bytes.
    #[test]
    fn samples_stay_where_they_fit() {
        let source = |ranks, request| input(ranks, "lassen", request).unwrap().source;
        assert_eq!(source(4, with(None, 190)), InputSource::DataStore);
        assert_eq!(source(4, with(None, 191)), InputSource::FileSystem);
        assert_eq!(source(5, with(None, 191)), InputSource::DataStore);
        assert_eq!(
            source(4, with(Some(IoChoice::Files), 1)),
            InputSource::FileSystem
        );
        let published = InputRequest::default();
        assert_eq!(source(208, published), InputSource::FileSystem);
        let needed = input(208, "lassen", published).unwrap().dataset.unwrap();
        assert_eq!(needed.ranks_min, Some(212));
        assert_eq!(source(212, published), InputSource::DataStore);
    }

    /// What an error offers, each of which can be taken.
    #[test]
    fn samples_that_cannot_come_offer_what_can_be_done() {
        let refused = |machine, choice, samples| {
            let error = input(4, machine, with(choice, samples)).unwrap_err();
            error.to_string()
        };
        let (store, files) = (Some(IoChoice::Store), Some(IoChoice::Files));
        let offers = |text: String, offered: &[&str], not: &[&str]| {
            let (_, possible) = text.split_once("\nhelp: try ").unwrap();
            assert!(offered.iter().all(|it| possible.contains(it)), "{text}");
            assert!(!not.iter().any(|it| possible.contains(it)), "{text}");
        };
        let smaller = "`--io store --dataset-samples 190` or fewer";
        offers(
            refused("lassen", store, 191),
            &["`--io files`", "on 8 ranks or more", smaller, "`--no-io`"],
            &[],
        );
        let smaller = "`--io store --dataset-samples 178` or fewer";
        let all = [None, store, files].map(|choice| refused("frontera", choice, 179));
        for text in all {
            offers(
                text,
                &["on 6 ranks", smaller, "`--no-io`"],
                &["`--io files`"],
            );
        }
        // All nodes of the machine together do not hold it.
        offers(
            refused("frontera", store, 10_000_000),
            &[smaller, "`--no-io`"],
            &["ranks"],
        );
        offers(
            refused("frontera", files, 178),
            &["`--io store`", "`--no-io`"],
            &["`--io files`", "ranks", "fewer"],
        );
    }

    #[test]
    fn ranks_on_processors_keep_samples_beside_their_programs() {
        let kept = |samples| {
            let input = input(4, "frontera", with(Some(IoChoice::Store), samples)).unwrap();
            (input.source, input.kept)
        };
        let sample = (1_u64 << 30) + 16;
        assert_eq!(kept(100), (InputSource::DataStore, Bytes(25 * sample)));
        // Half of 192 GB on each of two nodes.
        let most = (178 * sample).div_ceil(4);
        assert_eq!(kept(178), (InputSource::DataStore, Bytes(most)));
    }

    #[test]
    fn smaller_volumes_are_more_samples() {
        let count = |model: &str| published_samples(model).map(PublishedSamples::count);
        assert_eq!(count("cosmoflow@128"), Some(64 * 10_017));
        assert_eq!(count("cosmoflow@256+bn"), Some(8 * 10_017));
        assert_eq!(published_samples("t5-2-64-2@64"), None);
        assert_eq!(published_samples("mine"), None);
    }
}
