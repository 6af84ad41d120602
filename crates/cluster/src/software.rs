//! The software of a training as data: what a library does beyond the links and devices of a machine, each
//! number with its source.

use crate::entry::{Entry, FileText, MACHINE_KEYS, SOFTWARE_KEYS, table};
use crate::error::{MachineError, SoftwareError};
use crate::files::{self, FileSource};
use crate::machine::{
    Allreduce, AllreduceLink, Basis, Exchange, Fact, Machine, ProcessorKind, Share,
};
use crate::network::CollectiveLibrary;
use partita_files::read_piped_text;
use partita_space::{Bytes, BytesPerSecond, Seconds};
use std::path::{Path, PathBuf};

mod on_machine;

/// The profiles of this repository, so that the binary works from any folder.
const BUILT_IN: [(&str, &str); 8] = [
    (
        "chainermn",
        include_str!("../../../software/chainermn.toml"),
    ),
    ("horovod", include_str!("../../../software/horovod.toml")),
    ("lbann", include_str!("../../../software/lbann.toml")),
    ("mxnet", include_str!("../../../software/mxnet.toml")),
    ("partita", include_str!("../../../software/partita.toml")),
    (
        "partita-cudnn",
        include_str!("../../../software/partita-cudnn.toml"),
    ),
    (
        "partita-opencl",
        include_str!("../../../software/partita-opencl.toml"),
    ),
    (
        "pytorch-ddp",
        include_str!("../../../software/pytorch-ddp.toml"),
    ),
];

/// What a library for training does, whatever the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Software {
    /// Name, as in `--software NAME`.
    pub name: String,
    /// Settings of all layers of a strategy, such as `batch_norm=local,bucket=25MiB`; a given strategy overrides
    /// them.
    pub strategy: Option<Fact<String>>,
    /// The library of its collectives.
    pub collectives: Fact<CollectiveLibrary>,
    /// Whether samples stay in the host memory of the ranks after the first epoch, and are sent from there.
    pub data_store: Fact<bool>,
    /// Whether each rank loads only its part of a sample; if not, one rank of a sample loads all of it and scatters it.
    /// Absent, it does.
    pub spatial_io: Option<Fact<bool>>,
    /// Messages between neighbors, if they cost more than the links.
    pub exchange: Option<NeighborExchange>,
    /// Sums over ranks, as far as this software is known to differ.
    pub allreduce: Option<SoftwareSums>,
    /// Waits for activations of which a layer needs more than its rank owns.
    pub redistribution: Option<Redistribution>,
    /// How kernels differ from what the device gives.
    pub kernels: SoftwareKernels,
    /// Memory of a rank on a GPU beside the program, if any.
    pub memory: Option<GpuMemory>,
    /// Whether it exists; absent if it does.
    pub built: Option<Fact<bool>>,
    /// Copies between the memory of a GPU and that of the host, through which all messages pass; absent if devices
    /// send to each other.
    pub staging: Option<Exchange>,
}

/// How kernels differ from what the device gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SoftwareKernels {
    /// Time of kernels of batch norms, in times of what their memory traffic takes at the rate of the device;
    /// absent if it is that.
    pub batch_norm: Option<Fact<Factor>>,
    /// Time of activations, sums and other operations on single elements, in times of what their memory traffic takes.
    /// Below 1 where the library computes them inside other kernels, in training too.
    pub pointwise: Option<Fact<Factor>>,
    /// The same for group, instance and layer norms.
    pub group_norm: Option<Fact<Factor>>,
    /// What a kernel takes however small it is, with all that the framework does for each; updates and padding are
    /// left out. Absent if it is what a launch on the device takes.
    pub start: Option<Fact<Seconds>>,
    /// How kernels speed up when a layer is split.
    pub split: KernelSplit,
    /// Kernels of its own on GPUs; absent if it uses the vendor's libraries, whose rates machine files hold.
    pub gpu: Option<GpuKernels>,
}

/// Messages between neighbors with packing, stream synchronization and staging through the host:
/// `T(m) = latency + m / bandwidth`, and no faster than the link.
#[derive(Clone, Debug, PartialEq)]
pub struct NeighborExchange {
    /// Between two devices of a node.
    pub intra: Exchange,
    /// Between devices of two nodes.
    pub inter: Exchange,
}

/// How sums over ranks run.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftwareSums {
    /// Share of its time in which a sum occupies the device; absent if it overlaps with computation.
    pub occupancy: Option<Fact<Share>>,
    /// The fit that replaces the formulas of a machine's links, if there is one.
    pub fit: Option<SumFit>,
}

/// A fit of the allreduce over the links of any machine, see [`AllreduceLink`].
#[derive(Clone, Debug, PartialEq)]
pub struct SumFit {
    /// Latency of a step within a node.
    pub latency_intra: Fact<Seconds>,
    /// Latency of a step between nodes.
    pub latency_inter: Fact<Seconds>,
    /// Network adapters of a node that a sum uses at once.
    pub adapters: Fact<AdaptersUsed>,
    /// Exponent of the number of nodes in the transfer time; absent for a ring.
    pub growth: Option<Fact<Share>>,
}

/// How many of a node's network adapters a sum uses at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdaptersUsed {
    /// All that a node has.
    All,
    /// This many, or all of a node that has fewer.
    AtMost(usize),
}

impl AdaptersUsed {
    /// Adapters in use on a node that has this many.
    pub fn of(self, in_node: usize) -> usize {
        match self {
            Self::All => in_node,
            Self::AtMost(most) => most.min(in_node),
        }
    }
}

/// What a redistribution of activations costs beyond its messages.
#[derive(Clone, Debug, PartialEq)]
pub struct Redistribution {
    /// Time of the way back in the backward pass, in times of the way there. Programs that recompute nothing
    /// and keep copies on all ranks have no messages for it.
    pub backward: Fact<Factor>,
}

/// Exponents e by which kernels of a layer that is split k ways take k^(e - 1) of the time of the whole layer:
/// 0 if they speed up k times, 1 if not at all, above 1 if they slow down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelSplit {
    /// Split filters.
    pub filter: Option<Fact<Exponent>>,
    /// Split channels.
    pub channel: Option<Fact<Exponent>>,
    /// Split depth, height or width.
    pub space: Option<Fact<Exponent>>,
}

/// Memory of a rank on a GPU that no program allocates. Ranks on processors have none.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuMemory {
    /// Contexts of the runtime and the libraries.
    pub context: Fact<Bytes>,
    /// Limit of the workspace of convolutions, which counts in full.
    pub workspace: Fact<Bytes>,
}

/// Rates of kernels on GPUs that compute in f32 without tensor cores, whatever the type of the activations.
#[derive(Clone, Debug, PartialEq)]
pub struct GpuKernels {
    /// Convolutions with one or two spatial dims, and matrix products, of the peak in f32.
    pub conv2d: Fact<Share>,
    /// Convolutions with three spatial dims, of the peak in f32.
    pub conv3d: Fact<Share>,
    /// Memory-bound kernels, of the peak memory bandwidth.
    pub memory_bound: Fact<Share>,
    /// Launch of a kernel.
    pub start: Fact<Seconds>,
}

/// A factor of a time, 0 or more.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Factor(pub f64);

/// An exponent from 0 to 2.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Exponent(pub f64);

table!(Software {
    name,
    strategy,
    collectives,
    data_store,
    built,
    spatial_io,
    exchange,
    staging,
    allreduce,
    redistribution,
    kernels,
    memory,
});

table!(NeighborExchange { intra, inter });

table!(SoftwareSums {
    occupancy if at_most_all("a sum takes no more than all of a device"),
    fit,
});

table!(SumFit {
    latency_intra,
    latency_inter,
    adapters,
    growth if at_most_all("twice the nodes at most double the time of a byte"),
});

table!(Redistribution { backward });
table!(SoftwareKernels or default {
    batch_norm,
    pointwise,
    group_norm,
    start,
    split,
    gpu
});
table!(KernelSplit or default { filter, channel, space });

table!(GpuKernels {
    conv2d if at_most_all("kernels are no faster than the peak"),
    conv3d if at_most_all("kernels are no faster than the peak"),
    memory_bound if at_most_all("kernels are no faster than the peak"),
    start,
});

table!(GpuMemory { context, workspace });

impl Software {
    /// Reads the text of a profile; `file` is the name that errors give it.
    ///
    /// Errors: the first fault, with its line, its key and what is possible there.
    pub fn parse(text: &str, file: &str) -> Result<Software, MachineError> {
        let other = |file| MachineError::IsMachine { file };
        FileText { text, file }.read((&SOFTWARE_KEYS, &MACHINE_KEYS), other)
    }

    /// The text of a profile; reading it back gives an equal one.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        self.write_tables("", &mut text);
        text
    }

    /// This runtime, and a request that names none: on processors the profile of this name, on GPUs [`Self::OWN_ON_GPUS`].
    pub const OWN: &'static str = "partita";
    /// The profile of this runtime on GPUs.
    pub const OWN_ON_GPUS: &'static str = "partita-opencl";

    /// A profile by its name or by the path of its file, as [`Machine::load`].
    ///
    /// Errors: an unknown name (with those that exist), a file that cannot be read, and all that
    /// [`Software::parse`] refuses.
    pub fn load(name_or_path: &str, search_dirs: &[PathBuf]) -> Result<Software, SoftwareError> {
        match files::find(name_or_path, search_dirs, &BUILT_IN) {
            Some(FileSource::File(path)) => read_file(&path),
            Some(FileSource::BuiltIn(text)) => Ok(Software::parse(
                text,
                &format!("software/{name_or_path}.toml"),
            )?),
            None => Err(unknown(name_or_path, search_dirs)),
        }
    }

    /// Whether a profile of this name is compiled in.
    pub(crate) fn is_built_in(name: &str) -> bool {
        files::built_in(name, &BUILT_IN).is_some()
    }

    /// The names that [`Software::load`] knows, sorted: those in `search_dirs` and those compiled in.
    ///
    /// A folder that cannot be listed has none.
    pub fn available(search_dirs: &[PathBuf]) -> Vec<String> {
        files::available(search_dirs, &BUILT_IN)
    }

    /// Whether each rank loads only its part of a sample.
    pub fn reads_parts(&self) -> bool {
        self.spatial_io.as_ref().is_none_or(|fact| fact.value)
    }

    /// Memory of a rank beside the program: context and workspace.
    pub fn memory_on(&self, kind: ProcessorKind) -> (Bytes, Bytes) {
        match (kind, &self.memory) {
            (ProcessorKind::Gpu, Some(memory)) => (memory.context.value, memory.workspace.value),
            (ProcessorKind::Gpu, None) | (ProcessorKind::Cpu, _) => (Bytes(0), Bytes(0)),
        }
    }

    /// Its own fit of the allreduce, where the machine's file has none.
    pub fn sum_fit_on(&self, machine: &Machine) -> Option<&SumFit> {
        let own = self.allreduce.as_ref()?.fit.as_ref();
        own.filter(|_| machine.allreduce.is_none())
    }

    /// The fit of the allreduce on a machine: that of the machine's file, else that of the software with the
    /// bandwidth of the machine's links; none if neither has one.
    pub fn allreduce_on(&self, machine: &Machine) -> Option<Allreduce> {
        if machine.allreduce.is_some() {
            return machine.allreduce.clone();
        }
        let sums = self.allreduce.as_ref()?;
        let fit = self.sum_fit_on(machine)?;
        let (intra, inter) = (&machine.links.intra, &machine.links.inter);
        let adapters = fit.adapters.value.of(inter.nics_per_node.value);
        let share = adapters as f64 / inter.nics_per_node.value as f64;
        Some(Allreduce {
            occupancy: sums.occupancy.clone(),
            intra: AllreduceLink {
                latency: fit.latency_intra.clone(),
                bandwidth: intra.bandwidth.clone(),
                growth: None,
            },
            inter: AllreduceLink {
                latency: fit.latency_inter.clone(),
                bandwidth: Fact {
                    value: BytesPerSecond(inter.node_bandwidth.value.0 * share),
                    basis: Basis::Derived,
                    source: format!("{adapters} adapter(s) of a node"),
                },
                growth: fit.growth.clone(),
            },
        })
    }
}

fn read_file(path: &Path) -> Result<Software, SoftwareError> {
    let text = read_piped_text(path).map_err(|source| SoftwareError::Unreadable {
        path: path.to_owned(),
        source,
        nearest: files::nearest_of_path(path, &BUILT_IN),
    })?;
    Ok(Software::parse(&text, &path.display().to_string())?)
}

fn unknown(asked: &str, search_dirs: &[PathBuf]) -> SoftwareError {
    let available = Software::available(search_dirs);
    SoftwareError::Unknown {
        asked: asked.to_owned(),
        nearest: files::nearest(asked, &available),
        is_machine: Machine::is_built_in(asked),
        available,
    }
}
