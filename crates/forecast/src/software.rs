//! Software profiles by name or file, and what a request takes from them.

use partita_cluster::{Machine, ProcessorKind, Software};
use partita_graph::Graph;
use partita_lower::{Setting, Strategy};
use partita_oracle::Prediction;
use partita_run::Footprint;
use partita_site::{Environment, ErrorKind, Fault};
use partita_space::Bytes;
use partita_space::help::{Help, Message};

/// A software profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SoftwareError {
    /// No profile has this name, or its file is faulty.
    #[error(transparent)]
    Load(#[from] partita_cluster::SoftwareError),
    /// Its strategy is no text of settings.
    #[error(
        "software `{software}`: `strategy` is \"{text}\"{}{}",
        .reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})")),
        Help::possible(format_args!("settings of all layers: {}", Setting::ALL.map(Setting::name).join(", ")))
    )]
    Settings {
        /// Its name or path.
        software: String,
        /// The text.
        text: String,
        /// Why it is no strategy at all.
        reason: Option<String>,
    },
    /// A profile of other software for the local machine.
    #[error(
        "`here` is measured with this runtime, so `--software {0}` cannot be{help}",
        help = Help::none().nearest("`--machine` with a machine file, or `--software partita`")
    )]
    Here(String),
}

impl Fault for SoftwareError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}

/// The profile of a name or of a file on a machine, and the strategy with its settings. This runtime has another profile on GPUs
/// whose kernels were not measured than on processors.
///
/// Errors: no such profile, a faulty file, a strategy beyond settings.
pub fn resolve(
    asked: &str,
    machine: Option<&Machine>,
    environment: &Environment,
) -> Result<(Software, Strategy), SoftwareError> {
    let of_file = |machine: &Machine| {
        machine.device.kind == ProcessorKind::Gpu && machine.calibration.is_none()
    };
    let asked = match asked {
        Software::OWN if machine.is_some_and(of_file) => Software::OWN_ON_GPUS,
        other => other,
    };
    let software = Software::load(asked, &environment.software_folders)?;
    let Some(settings) = &software.strategy else {
        return Ok((software, Strategy::single()));
    };
    let text = &settings.value;
    let faulty = |reason: Option<String>| SoftwareError::Settings {
        software: asked.to_owned(),
        text: text.clone(),
        reason,
    };
    let strategy: Strategy = text
        .parse()
        .map_err(|error: partita_lower::StrategyError| {
            faulty(Some(Message::of(&error).inline()))
        })?;
    if !strategy.is_of_settings() {
        return Err(faulty(None));
    }
    Ok((software, strategy))
}

/// Those settings that concern a model.
pub(crate) fn settings_for(mut settings: Strategy, graph: &Graph) -> Strategy {
    if !graph.has_batch_norm() {
        settings.batch_norm = Strategy::single().batch_norm;
    }
    settings
}

/// Says so if software does not exist yet.
pub fn not_built(software: &Software) -> Option<String> {
    let built = software.built.as_ref().filter(|built| !built.value)?;
    Some(format!(
        "{} is not built yet: the answer is what it would reach. {}",
        software.name, built.source
    ))
}

/// Says so if ranks are on several nodes, and the sums of a software leave network adapters of these idle.
pub(crate) fn idle_adapters(
    software: &Software,
    machine: &Machine,
    ranks: usize,
) -> Option<String> {
    if ranks <= machine.devices_per_node.value {
        return None;
    }
    let fit = software.sum_fit_on(machine)?;
    let in_node = machine.links.inter.nics_per_node.value;
    let used = fit.adapters.value.of(in_node);
    (used < in_node).then(|| {
        format!(
            "Allreduces use {used} of the {in_node} network adapters of a node: `allreduce.fit.adapters` of software `{}`.",
            software.name
        )
    })
}

/// Refuses other software than this runtime on the local machine.
pub(crate) fn check_local(asked: &str) -> Result<(), SoftwareError> {
    if asked == Software::OWN {
        return Ok(());
    }
    Err(SoftwareError::Here(asked.to_owned()))
}

/// Memory of a rank that no program allocates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    context: Bytes,
    workspace: Bytes,
    /// Samples that are kept in the memory in which the rank computes.
    kept: Bytes,
}

impl Reserve {
    /// Of a profile on a machine.
    pub fn new(software: &Software, machine: &Machine) -> Self {
        let (context, workspace) = match &machine.calibration {
            // Of a device whose kernels are our own: their workspaces lie in the arena, and what its driver takes is not known.
            Some(_) if [Software::OWN, Software::OWN_ON_GPUS].contains(&software.name.as_str()) => {
                (Bytes(0), Bytes(0))
            }
            Some(_) | None => software.memory_on(machine.device.kind),
        };
        Self {
            context,
            workspace,
            kept: Bytes(0),
        }
    }

    /// The same with samples that are kept.
    pub fn keeping(self, kept: Bytes) -> Self {
        Self { kept, ..self }
    }

    /// What a program may fill of a limit.
    pub fn room(self, limit: Bytes) -> Bytes {
        Bytes(limit.0.saturating_sub(self.total().0))
    }

    /// All of it.
    pub fn total(self) -> Bytes {
        self.context + self.workspace + self.kept
    }

    /// A footprint with it.
    pub fn added(self, footprint: Footprint) -> Footprint {
        Footprint {
            context: self.context,
            library_workspace: self.workspace,
            io_buffers: footprint.io_buffers + self.kept,
            ..footprint
        }
    }

    /// Adds it to a prediction.
    pub fn add_to(self, prediction: &mut Prediction) {
        prediction.memory = self.added(prediction.memory);
        prediction.memory_bytes_max += self.total();
    }
}
