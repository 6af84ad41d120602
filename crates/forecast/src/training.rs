//! A training request, and its verified program.

use crate::planning::PlanningError;
use partita_cluster::LayerPrecision;
use partita_graph::Graph;
use partita_lower::{
    BatchNormStatistics, LoweringPass, Request, SampleFormat, Strategy, StrategyChecks,
    StrategyError, lower, lower_after,
};
use partita_program::{Dtype, Menu, Optimizer, Program, ProgramKind, Transform};
use partita_space::near;
use partita_verify::{Fault, Faults, verify, verify_classes};
use std::fmt;
use std::str::FromStr;

/// Adam with the constants of Kingma and Ba 2015.
pub const ADAM: Optimizer = Optimizer::Adam {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.0,
};

/// SGD with momentum 0.9.
pub const SGD: Optimizer = Optimizer::Sgd {
    momentum: 0.9,
    weight_decay: 0.0,
};

/// SGD with Nesterov's momentum of 0.9.
pub const NESTEROV: Optimizer = Optimizer::Nesterov {
    momentum: 0.9,
    weight_decay: 0.0,
};

/// AdamW with the constants of `torch.optim.AdamW`.
pub const ADAMW: Optimizer = Optimizer::AdamW {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 1e-2,
};

/// LARS with the constants of You et al. 2017.
pub const LARS: Optimizer = Optimizer::Lars {
    momentum: 0.9,
    weight_decay: 5e-4,
    trust: 1e-3,
    epsilon: 0.0,
};

/// LAMB with the constants of You et al. 2020.
pub const LAMB: Optimizer = Optimizer::Lamb {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-6,
    weight_decay: 1e-2,
};

/// The largest decay of averages of weights, in seven digits: it is below 1 in f32 too, in which kernels compute.
pub const EMA_MAX: f64 = 0.999_999_9;

/// 16-bit counts x, read as ln(1 + x).
pub const COUNTS: SampleFormat = SampleFormat {
    dtype: Dtype::I16,
    transform: Transform::LogOnePlus,
};

/// 16-bit counts x, read as x / 100, as of volumes and images.
pub const SCALED_COUNTS: SampleFormat = SampleFormat {
    dtype: Dtype::I16,
    transform: Transform::Scale { factor: 0.01 },
};

/// 32-bit floats.
pub const FLOATS: SampleFormat = SampleFormat {
    dtype: Dtype::F32,
    transform: Transform::Identity,
};

/// A training without its strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// Model of the zoo or path of a model file.
    pub model: String,
    /// Number of ranks.
    pub ranks: usize,
    /// Samples per step over all ranks.
    pub batch: usize,
    /// Optimizer with its constants.
    pub optimizer: Optimizer,
    /// Decay of the averages of the parameters, where they are kept.
    pub ema: Option<f64>,
    /// Storage type and transform of the samples.
    pub samples: SampleFormat,
    /// Precision of the layers. Programs of `bf16` and `f16` have activations of two bytes.
    pub precision: LayerPrecision,
}

impl Training {
    /// A training with [`ADAM`] on [`COUNTS`].
    pub fn new(model: &str, ranks: usize, batch: usize) -> Self {
        Self {
            model: model.to_owned(),
            ranks,
            batch,
            optimizer: ADAM,
            ema: None,
            samples: COUNTS,
            precision: LayerPrecision::F32,
        }
    }
}

/// The choice of a strategy.
#[derive(Clone, Debug, PartialEq)]
pub enum StrategyChoice {
    /// The strategy with the shortest predicted step, with these statistics of batch norms.
    Auto(BatchNormStatistics),
    /// This strategy.
    Given(Strategy),
}

impl StrategyChoice {
    /// A given strategy with its micro-batches multiplied. `auto` stays as it is.
    #[must_use]
    pub fn accumulating(self, parts: usize) -> Self {
        match self {
            Self::Auto(statistics) => Self::Auto(statistics),
            Self::Given(strategy) => Self::Given(accumulating(strategy, parts)),
        }
    }
}

/// The strategy with its micro-batches multiplied.
pub fn accumulating(mut strategy: Strategy, parts: usize) -> Strategy {
    strategy.micro = strategy.micro.saturating_mul(parts);
    strategy
}

/// Says that micro-batches change the training, if batch norm or Dice over a batch takes its sums over one of them. The
/// strategy has `parts` times the micro-batches that are asked for, as this many parts are accumulated.
pub fn micro_note(strategy: &Strategy, graph: &Graph, parts: usize) -> Option<String> {
    let (micro, norm) = (strategy.micro, graph.has_batch_norm());
    if micro == 1 || !graph.sums_samples() {
        return None;
    }
    let what = match (norm, graph.has_batch_dice()) {
        (true, true) => "batch norm and the Dice loss over a batch take their sums over",
        (true, false) => "batch norm takes the statistics of",
        (false, _) => "the Dice loss over a batch takes its sums over",
    };
    let asked = match (micro / parts, parts) {
        (micro, 1) => format!("micro={micro}"),
        (1, parts) => format!("accumulate = {parts}"),
        (micro, parts) => format!("micro={micro} and accumulate = {parts}"),
    };
    Some(format!(
        "{asked}: {what} one micro-batch at a time, so this trains as one rank does with the same \
         micro-batches, not as one with whole mini-batches"
    ))
}

impl FromStr for StrategyChoice {
    type Err = StrategyError;

    /// Reads `auto`, `auto,batch_norm=local` or a strategy like `data=4,depth=2`.
    fn from_str(text: &str) -> Result<Self, StrategyError> {
        let mut words = text.split(',').map(str::trim);
        if words.next() != Some("auto") {
            return text.parse().map(Self::Given).map_err(|error| {
                let word = text.split(',').next().unwrap_or_default().trim();
                match near(word, ["auto"]).filter(|_| !word.contains('=')) {
                    Some(_) => StrategyError::Value {
                        text: text.to_owned(),
                        word: word.to_owned(),
                        possible: "`auto`, or words like `data=4`".to_owned(),
                        nearest: "auto".to_owned(),
                    },
                    None => error,
                }
            });
        }
        let all = BatchNormStatistics::ALL.into_iter();
        let settings = all.map(|one| (format!("batch_norm={}", one.name()), one));
        let settings: Vec<(String, BatchNormStatistics)> = settings.collect();
        let rest: Vec<&str> = words.collect();
        match rest[..] {
            [] => Ok(Self::Auto(BatchNormStatistics::default())),
            [word] if settings.iter().any(|(text, _)| text == word) => {
                let known = settings.iter().find(|(text, _)| text == word);
                Ok(Self::Auto(known.map(|(_, one)| *one).unwrap_or_default()))
            }
            _ => {
                let texts: Vec<&str> = settings.iter().map(|(text, _)| text.as_str()).collect();
                let near = near(rest[0], texts.iter().copied());
                Err(StrategyError::Value {
                    text: text.to_owned(),
                    word: rest.join(","),
                    possible: format!("after `auto` one of {}", texts.join(", ")),
                    nearest: near.map_or("auto".to_owned(), |near| format!("auto,{near}")),
                })
            }
        }
    }
}

impl fmt::Display for StrategyChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto(statistics) if *statistics == BatchNormStatistics::default() => {
                f.write_str("auto")
            }
            Self::Auto(statistics) => write!(f, "auto,batch_norm={}", statistics.name()),
            Self::Given(strategy) => strategy.fmt(f),
        }
    }
}

/// A verified program with its strategy.
pub struct Lowered {
    /// Name of the model.
    pub model: String,
    /// The strategy, with the layers of all stages.
    pub strategy: Strategy,
    /// The program of all ranks.
    pub program: Program,
}

/// Predictions verify all programs of at most this many ranks, or tasks. A few seconds of a core.
const RANKS_VERIFIED: usize = 1024;
const TASKS_VERIFIED: usize = 60_000;
/// Of larger programs classes of this many tasks are verified. A second of a core.
const TASKS_SAMPLED: usize = 20_000;
/// The same of views of messages and collectives: sharded state has one for each member of a group.
const VIEWS_VERIFIED: usize = 1_000_000;
const VIEWS_SAMPLED: usize = 300_000;

/// Lowers a training and verifies the program. `stages` chooses the layers of open stages.
///
/// Errors: an invalid strategy, number of ranks or batch; a faulty program, which is a bug.
pub fn lowered(
    subject: (&Graph, &Training, &StrategyChoice),
    menu: &dyn Menu,
    kind: ProgramKind,
    stages: &dyn Fn(&Request<'_>) -> Result<Strategy, PlanningError>,
) -> Result<Lowered, PlanningError> {
    lowered_by(&lower_verified, subject, menu, kind, stages)
}

/// As [`lowered`], but of programs of very many tasks only some classes are verified, as verifying all would take longer than the
/// prediction.
///
/// Errors: as [`lowered`].
pub fn lowered_to_predict(
    subject: (&Graph, &Training, &StrategyChoice),
    menu: &dyn Menu,
    kind: ProgramKind,
    stages: &dyn Fn(&Request<'_>) -> Result<Strategy, PlanningError>,
) -> Result<Lowered, PlanningError> {
    lowered_by(&lower_to_predict, subject, menu, kind, stages)
}

fn lowered_by(
    lower: &dyn Fn(&Request<'_>) -> Result<Program, PlanningError>,
    subject: (&Graph, &Training, &StrategyChoice),
    menu: &dyn Menu,
    kind: ProgramKind,
    stages: &dyn Fn(&Request<'_>) -> Result<Strategy, PlanningError>,
) -> Result<Lowered, PlanningError> {
    let (strategy, program) = with_request(subject, menu, kind, stages, lower)?;
    Ok(Lowered {
        model: subject.0.name.clone(),
        strategy,
        program,
    })
}

/// Lowers, and verifies a sample of what is large. Errors: as [`lowered`].
pub fn lower_to_predict(request: &Request<'_>) -> Result<Program, PlanningError> {
    check_layout(request)?;
    let program = lower(request)?;
    let found = match sampled_classes(&program) {
        Some(classes) => verify_classes(&program, &classes),
        None => verify(&program),
    };
    check(&program, found)?;
    Ok(program)
}

/// The classes of which a prediction verifies each, evenly spread; none where it verifies the whole program.
fn sampled_classes(program: &Program) -> Option<Vec<usize>> {
    let (ranks, tasks) = (program.mesh.ranks(), program.tasks());
    let views = program.views_moved();
    let has_many_tasks = ranks > RANKS_VERIFIED && tasks > TASKS_VERIFIED;
    (has_many_tasks || views > VIEWS_VERIFIED).then(|| {
        let classes = program.bodies.len();
        let by_tasks = (classes * TASKS_SAMPLED).div_ceil(tasks);
        let by_views = (classes * VIEWS_SAMPLED).div_ceil(views.max(1));
        let count = by_tasks.min(by_views).min(classes);
        (0..count).map(|at| at * classes / count).collect()
    })
}

/// What a prediction says of a program of which it verifies a sample.
pub fn sample_note(program: &Program) -> Option<String> {
    sampled_classes(program).map(|sampled| {
        format!(
            "Of {} classes of ranks ({} tasks) {} were verified, without deadlocks and partial sums; `partita lower` verifies all.",
            program.bodies.len(),
            program.tasks(),
            sampled.len(),
        )
    })
}

/// The strategy with the layers of all stages, and the result of `lower`.
///
/// Errors: as [`lowered`], and those of `lower`.
pub fn with_request<T>(
    (graph, training, strategy): (&Graph, &Training, &StrategyChoice),
    menu: &dyn Menu,
    kind: ProgramKind,
    stages: &dyn Fn(&Request<'_>) -> Result<Strategy, PlanningError>,
    lower: &dyn Fn(&Request<'_>) -> Result<T, PlanningError>,
) -> Result<(Strategy, T), PlanningError> {
    let strategy = given(graph, strategy, training, kind)?;
    let request = request(graph, &strategy, training, kind, menu);
    let strategy = stages(&request)?;
    let made = lower(&Request {
        strategy: &strategy,
        ..request
    })?;
    Ok((strategy, made))
}

/// The request to lower a training with a strategy and kernels.
pub fn request<'r>(
    graph: &'r Graph,
    strategy: &'r Strategy,
    training: &Training,
    kind: ProgramKind,
    menu: &'r dyn Menu,
) -> Request<'r> {
    Request {
        graph,
        strategy,
        batch: training.batch,
        kind,
        dtype: match training.precision {
            LayerPrecision::F32 | LayerPrecision::Tf32 => Dtype::F32,
            LayerPrecision::Bf16 => Dtype::Bf16,
            LayerPrecision::F16 => Dtype::F16,
        },
        optimizer: training.optimizer,
        decay_norms: !training.optimizer.has_trust_ratio(),
        ema: training.ema,
        clip: None,
        samples: training.samples,
        menu,
    }
}

/// Lowers and verifies. Errors: as [`lowered`].
pub fn lower_verified(request: &Request<'_>) -> Result<Program, PlanningError> {
    check_layout(request)?;
    let program = lower(request)?;
    check(&program, verify(&program))?;
    Ok(program)
}

/// The intermediate form after a lowering pass, not verified. Errors: as [`lowered`].
pub fn lower_until(request: &Request<'_>, pass: LoweringPass) -> Result<String, PlanningError> {
    check_layout(request)?;
    Ok(lower_after(request, pass)?)
}

/// Refuses ranks without a sample, which lowering allows for the last batch of an epoch.
fn check_layout(request: &Request<'_>) -> Result<(), PlanningError> {
    Ok(request
        .strategy
        .check_layout(request.graph, request.batch)?)
}

/// The given strategy, checked for the model, the ranks and the batch of a program.
///
/// Errors: an invalid strategy, with the nearest valid choice; `auto`.
pub fn given(
    graph: &Graph,
    strategy: &StrategyChoice,
    training: &Training,
    kind: ProgramKind,
) -> Result<Strategy, PlanningError> {
    let &Training { ranks, batch, .. } = training;
    let StrategyChoice::Given(strategy) = strategy else {
        return Err(PlanningError::Auto { ranks });
    };
    let checks = StrategyChecks {
        graph,
        ranks,
        batch,
        check: &|strategy, batch| match kind {
            ProgramKind::Train => strategy.check(graph, batch),
            ProgramKind::Evaluate
            | ProgramKind::Infer
            | ProgramKind::Fetch
            | ProgramKind::FetchSamples => strategy.check_layout(graph, batch),
        },
        suits: &|_, _| true,
    };
    checks.check(strategy)?;
    Ok(strategy.clone())
}

/// Verifies; open kernels are allowed, since nothing is run.
fn check(program: &Program, found: Result<(), Faults>) -> Result<(), PlanningError> {
    let Err(Faults(mut faults)) = found else {
        return Ok(());
    };
    faults.retain(|fault| !matches!(fault, Fault::Unpinned { .. }));
    if faults.is_empty() {
        return Ok(());
    }
    Err(PlanningError::Unsound {
        program: program.title.clone(),
        faults: Faults(faults),
    })
}
