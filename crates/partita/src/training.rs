use crate::args::{KernelSet, KindName, OptimizerName, SampleName, TrainingArgs};
use crate::error::CliError;
use crate::{menu, model};
use partita_graph::Graph;
use partita_lower::{Request, SampleFormat, Strategy, lower};
use partita_program::verify::{Fault, Faults, verify};
use partita_program::{Dtype, Menu, Optimizer, Program, ProgramKind, Transform};

/// A program that passed `verify`, with what it was made from.
pub struct Lowered {
    /// The model.
    pub graph: Graph,
    /// How it is split.
    pub strategy: Strategy,
    /// What the ranks do.
    pub program: Program,
}

/// Lowers what the user asked for and verifies the outcome.
///
/// Layers of stages that are left open are said by `stages`.
/// Errors of the user: a model, strategy, number of ranks or batch that does not exist or fit.
/// Failures: faults of the program, which are faults of lowering.
pub fn lowered(
    training: &TrainingArgs,
    strategy_text: &str,
    kernels: KernelSet,
    kind: KindName,
    stages: &dyn Fn(&Request<'_>) -> Result<Strategy, CliError>,
) -> Result<Lowered, CliError> {
    let graph = model::resolve(&training.model)?;
    let strategy = strategy(strategy_text, training.ranks, training.batch)?;
    let menu = menu::of(kernels);
    let request = request(&graph, &strategy, training, kind, &*menu);
    let strategy = stages(&request)?;
    let program = lower_verified(&Request {
        strategy: &strategy,
        ..request
    })?;
    Ok(Lowered {
        graph,
        strategy,
        program,
    })
}

/// What there is to lower; `training` gives all but the split and the kernels.
pub fn request<'r>(
    graph: &'r Graph,
    strategy: &'r Strategy,
    training: &TrainingArgs,
    kind: KindName,
    menu: &'r dyn Menu,
) -> Request<'r> {
    Request {
        graph,
        strategy,
        batch: training.batch,
        kind: match kind {
            KindName::Train => ProgramKind::Train,
            KindName::Evaluate => ProgramKind::Evaluate,
        },
        dtype: Dtype::F32,
        optimizer: optimizer(training.optimizer),
        clip: None,
        samples: sample_format(training.samples),
        menu,
    }
}

/// Lowers and verifies. Errors: as [`lowered`].
pub fn lower_verified(request: &Request<'_>) -> Result<Program, CliError> {
    // Lowering itself allows ranks without a sample, for the last batch of an epoch.
    let strategy = request.strategy;
    strategy
        .check_layout(request.graph, request.batch)
        .map_err(|error| CliError::user(&error))?;
    let program = lower(request).map_err(|error| CliError::user(&error))?;
    check(&program)?;
    Ok(program)
}

/// Reads a strategy for a number of ranks and samples of a mini-batch.
///
/// Errors: what is no strategy, does not suit these, or is left open.
pub fn strategy(text: &str, ranks: usize, batch: usize) -> Result<Strategy, CliError> {
    if text.trim() == "auto" {
        return Err(CliError::User(format!(
            "`auto` stands for a strategy only where `partita train` is to choose one; `partita plan` says \
             which strategies there are for {ranks} rank(s), and one of them is `data={ranks}`"
        )));
    }
    let strategy: Strategy = text
        .parse()
        .map_err(|error: partita_lower::StrategyError| CliError::user(&error))?;
    strategy
        .check_ranks(ranks, batch)
        .map_err(|error| CliError::user(&error))?;
    Ok(strategy)
}

/// Verifies; kernels left open are no fault here, since nothing is run.
fn check(program: &Program) -> Result<(), CliError> {
    let Err(Faults(mut faults)) = verify(program) else {
        return Ok(());
    };
    faults.retain(|fault| !matches!(fault, Fault::Unpinned { .. }));
    if faults.is_empty() {
        return Ok(());
    }
    let faults = Faults(faults);
    Err(CliError::Run(format!("`{}`: {faults}", program.title)))
}

/// Adam with the constants of Kingma and Ba 2015, or gradient descent with momentum 0.9.
fn optimizer(name: OptimizerName) -> Optimizer {
    match name {
        OptimizerName::Adam => Optimizer::Adam {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
        },
        OptimizerName::Sgd => Optimizer::Sgd {
            momentum: 0.9,
            weight_decay: 0.0,
        },
    }
}

fn sample_format(name: SampleName) -> SampleFormat {
    match name {
        SampleName::Int16 => SampleFormat {
            dtype: Dtype::I16,
            transform: Transform::LogOnePlus,
        },
        SampleName::Int16Scaled => SampleFormat {
            dtype: Dtype::I16,
            transform: Transform::Scale { factor: 0.01 },
        },
        SampleName::Float32 => SampleFormat {
            dtype: Dtype::F32,
            transform: Transform::Identity,
        },
    }
}
