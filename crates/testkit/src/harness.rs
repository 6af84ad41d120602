//! Runs a program on ranks that are threads, and gathers the results.

use crate::sequences::embedded_rows;
use crate::watch::{Recorded, Watch, limit};
use crate::{Case, MemorySource, Samples, Stored};
use partita_graph::{Graph, Op, ParameterRole, TargetKind, initial_values};
use partita_lower::{LowerError, Request, SampleFormat, Strategy, lower};
use partita_program::{AVERAGE, Dtype, Menu, Optimizer, Program, ProgramKind, Role, Transform};
use partita_reference::{ReferenceKernels, ReferenceMenu};
use partita_run::{Inputs, Kernels, Memory, NoSink, RankRunner, RunError, SystemClock};
use partita_session::{model_name, persistent_name, put_shard, shard_of};
use partita_space::{Mesh, Rank, Seconds};
use partita_threads::{LaunchError, connect, launch};
use std::sync::Arc;
use std::time::Duration;

/// Makes the kernels of a rank.
pub type KernelFactory<'a> = &'a (dyn Fn(Mesh, Rank) -> Box<dyn Kernels> + Sync);

/// The complete setup of a run.
#[derive(Clone)]
pub struct Setup<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// The strategy.
    pub strategy: Strategy,
    /// Type of activations and parameters.
    pub dtype: Dtype,
    /// Kernel catalog.
    pub menu: &'a dyn Menu,
    /// Kernels of each rank.
    pub kernels: KernelFactory<'a>,
    /// Update rule.
    pub optimizer: Optimizer,
    /// Whether biases, scales and shifts have the weight decay and the trust ratio of the optimizer.
    pub decay_norms: bool,
    /// Decay of the averages of the parameters, where they are kept.
    pub ema: Option<f64>,
    /// Largest norm of the gradients.
    pub clip: Option<f64>,
    /// Learning rate.
    pub learning_rate: f64,
    /// Factor of the gradients of training steps.
    pub loss_scale: Option<f64>,
    /// Samples, as many as the mini-batch has; every step uses all of them.
    pub samples: Arc<Samples>,
    /// Initial values of each parameter, in the order of the graph.
    pub parameters: Vec<Vec<f64>>,
    /// Steps of training.
    pub steps: usize,
    /// Seed of dropout.
    pub seed: u64,
}

/// Results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Loss of each step.
    pub losses: Vec<f64>,
    /// Parameters and state by name, before the first and after each step; averages behind them, as `name.average`.
    pub parameters: Vec<Vec<(String, Vec<f64>)>>,
    /// Loss and errors of an evaluation after the last step.
    pub evaluation: Vec<f64>,
}

impl Outcome {
    /// Parameters of the graph that are trained, after this many steps.
    pub fn trained(&self, graph: &Graph, steps: usize) -> Vec<&[f64]> {
        let is_trained = |name: &str| {
            let mut all = graph.parameters.iter();
            all.any(|parameter| parameter.name == name && parameter.is_trained())
        };
        let named = self.parameters[steps].iter();
        let trained = named.filter(|(name, _)| is_trained(name));
        trained.map(|(_, values)| values.as_slice()).collect()
    }
}

/// The reference kernels of a dtype.
pub fn reference_kernels(dtype: Dtype) -> impl Fn(Mesh, Rank) -> Box<dyn Kernels> + Sync {
    move |mesh, rank| match dtype {
        Dtype::F32 | Dtype::Bf16 | Dtype::F16 => Box::new(ReferenceKernels::<f32>::new(mesh, rank)),
        Dtype::F64 => Box::new(ReferenceKernels::<f64>::new(mesh, rank)),
        Dtype::I16 => panic!("no kernels compute in 16-bit integers"),
    }
}

impl<'a> Setup<'a> {
    /// The run of a random case in f64 on these kernels with everything else by default: plain SGD,
    /// three steps.
    pub fn of_case(case: &'a Case, kernels: KernelFactory<'a>) -> Self {
        let (samples, parameters) = Setup::draw(&case.graph, case.batch, case.seed);
        Self {
            graph: &case.graph,
            strategy: case.strategy.clone(),
            dtype: Dtype::F64,
            menu: &ReferenceMenu,
            kernels,
            optimizer: Optimizer::Sgd {
                momentum: 0.0,
                weight_decay: 0.0,
            },
            decay_norms: true,
            ema: None,
            clip: None,
            learning_rate: 0.1,
            loss_scale: None,
            samples,
            parameters,
            steps: 3,
            seed: case.seed,
        }
    }
}

impl Setup<'_> {
    /// Deterministic samples and parameters for a graph from a seed.
    pub fn draw(graph: &Graph, batch: usize, seed: u64) -> (Arc<Samples>, Vec<Vec<f64>>) {
        let mut draws = crate::Draws::new(seed);
        let input = graph.nodes[0].shape;
        let [d, h, w] = input.extent;
        let last = &graph.nodes[graph.nodes.len() - 1];
        let output = graph.node(last.inputs[0]).shape;
        let rows = embedded_rows(graph);
        let mut values = Vec::new();
        let mut targets = Vec::new();
        for _ in 0..batch {
            let positions = input.volume() / input.channels;
            let value = |at: usize| match rows[at / positions] {
                Some(rows) => draws.between(0, rows - 1) as f64,
                None => draws.unit(),
            };
            values.push(Stored::F64((0..input.volume()).map(value).collect()));
            targets.push(match last.op {
                Op::Loss(ref loss) if loss.target() == TargetKind::Classes => {
                    let positions = output.volume() / output.channels;
                    let class = |draws: &mut crate::Draws| draws.between(0, output.channels - 1);
                    (0..positions).map(|_| class(&mut draws) as f64).collect()
                }
                _ => (0..output.volume()).map(|_| draws.unit()).collect(),
            });
        }
        let mut nodes = graph.nodes.iter();
        let numbers = nodes.find(|node| node.op == Op::Features);
        let count = numbers.map_or(0, |node| node.shape.channels);
        let mut row = |_| (0..count).map(|_| draws.unit()).collect();
        let samples = Samples {
            shape: [input.channels, d, h, w],
            values,
            targets,
            features: (0..batch).map(&mut row).collect(),
        };
        let parameters = graph
            .parameters
            .iter()
            .map(|parameter| {
                if parameter.is_constant {
                    return initial_values(parameter, 0);
                }
                let mut value = || match parameter.role {
                    ParameterRole::Weight => {
                        let taps = parameter.volume() / parameter.shape[4];
                        draws.unit() * (3.0 / taps as f64).sqrt()
                    }
                    ParameterRole::Bias | ParameterRole::Beta | ParameterRole::RunningMean => {
                        0.3 * draws.unit()
                    }
                    ParameterRole::Slope => 0.25 + 0.3 * draws.unit(),
                    ParameterRole::Gamma | ParameterRole::RunningVariance => {
                        1.0 + 0.3 * draws.unit()
                    }
                };
                (0..parameter.volume()).map(|_| value()).collect()
            })
            .collect();
        (Arc::new(samples), parameters)
    }

    /// The request for one kind of program.
    pub fn request(&self, kind: ProgramKind) -> Request<'_> {
        let dtype = match self.samples.values[0] {
            Stored::I16(_) => Dtype::I16,
            Stored::F32(_) => Dtype::F32,
            Stored::F64(_) => Dtype::F64,
        };
        Request {
            graph: self.graph,
            strategy: &self.strategy,
            batch: self.samples.values.len(),
            kind,
            dtype: self.dtype,
            optimizer: self.optimizer,
            decay_norms: self.decay_norms,
            ema: self.ema,
            clip: self.clip,
            samples: SampleFormat {
                dtype,
                transform: Transform::Identity,
            },
            menu: self.menu,
        }
    }

    /// The program of one kind, verified.
    ///
    /// Panics if verification fails, which is a bug of lowering.
    pub fn program(&self, kind: ProgramKind) -> Result<Program, LowerError> {
        let program = lower(&self.request(kind))?;
        if let Err(faults) = partita_verify::verify(&program) {
            panic!("{}: {faults}", program.title);
        }
        Ok(program)
    }
}

/// Trains a few steps on threads, and evaluates.
///
/// Errors: a rank that fails. Panics if the strategy cannot be lowered, or the case does not end in five
/// minutes (`PARTITA_CASE_SECONDS`).
pub fn run(setup: &Setup<'_>) -> Result<Outcome, LaunchError> {
    let watch = setup.watch(limit());
    let programs = [
        ProgramKind::Fetch,
        ProgramKind::Train,
        ProgramKind::Evaluate,
    ]
    .map(|kind| {
        watch.phase(&format!("lowering and verifying the program of {kind:?}"));
        setup.program(kind).expect("a case can be lowered")
    });
    run_watched(setup, &programs, &watch)
}

/// As [`run`], with the programs given: fetch, train, evaluate.
///
/// Errors: a rank that fails. Panics as [`run`] if the case does not end.
pub fn run_programs(setup: &Setup<'_>, programs: &[Program; 3]) -> Result<Outcome, LaunchError> {
    run_watched(setup, programs, &setup.watch(limit()))
}

/// As [`run_programs`], with a time limit.
///
/// Errors: a rank that fails. Panics if the case does not end in this time.
pub fn run_within(
    setup: &Setup<'_>,
    programs: &[Program; 3],
    limit: Duration,
) -> Result<Outcome, LaunchError> {
    run_watched(setup, programs, &setup.watch(limit))
}

impl Setup<'_> {
    fn watch(&self, limit: Duration) -> Watch {
        let model = partita_graph::text::print(self.graph);
        let batch = self.samples.values.len();
        let (seed, strategy) = (self.seed, &self.strategy);
        let name = format!("seed {seed}, batch {batch}, strategy `{strategy}`\n{model}");
        Watch::start(name, limit)
    }
}

fn run_watched(
    setup: &Setup<'_>,
    programs: &[Program; 3],
    watch: &Watch,
) -> Result<Outcome, LaunchError> {
    let mesh = programs[1].mesh;
    watch.phase("running its steps");
    let statuses = watch.statuses(mesh.ranks());
    let parts = connect(mesh, Seconds(0.0))
        .into_iter()
        .zip(statuses)
        .collect();
    let launched = launch(parts, watch.cancel(), |rank, (mut transport, status)| {
        transport.reserve(programs)?;
        let bytes = programs
            .iter()
            .map(|program| program.body(rank).arena)
            .max();
        let source = MemorySource::new(Arc::clone(&setup.samples), mesh, rank);
        let kernels = Arc::clone(&status).recording((setup.kernels)(mesh, rank));
        let mut runner = RankRunner {
            rank,
            arena: kernels.arena(rank, bytes.unwrap_or_default())?,
            kernels,
            transport: Box::new(Recorded {
                inner: transport,
                status: Arc::clone(&status),
            }),
            source: Box::new(Recorded {
                inner: source,
                status,
            }),
            sink: Box::new(NoSink),
            clock: Box::new(SystemClock::start()),
            cancel: watch.cancel(),
            watchdog: Seconds(30.0),
        };
        run_rank(setup, programs, rank, &mut runner)
    });
    watch.check();
    if let Err(LaunchError::Rank {
        error: RunError::Stalled { .. },
        ..
    }) = &launched
    {
        // The error names only one rank.
        eprintln!("{}", watch.report("stood still"));
    }
    let outcomes = launched?;
    for other in &outcomes[1..] {
        assert_eq!(other.losses, outcomes[0].losses, "ranks drifted apart");
    }
    let parameters = outcomes.iter().map(|outcome| &outcome.parameters[..]);
    let parameters = assemble(setup, &programs[1], &parameters.collect::<Vec<_>>());
    let first = outcomes.into_iter().next().unwrap_or_default();
    Ok(Outcome {
        parameters,
        ..first
    })
}

/// Parameters and state by name.
type Named = Vec<(String, Vec<f64>)>;

/// The parameters after each step, from the shards of all ranks. Replicas must be bitwise equal.
fn assemble(setup: &Setup<'_>, program: &Program, ranks: &[&[Named]]) -> Vec<Named> {
    let parameters = setup.graph.parameters.iter();
    let averaged = parameters.clone().filter(|one| one.is_trained());
    let averaged = averaged.filter(|_| setup.ema.is_some());
    let averages = averaged.map(|one| (format!("{}{AVERAGE}", one.name), one.volume()));
    let all = parameters.map(|one| (one.name.clone(), one.volume()));
    let all: Vec<(String, usize)> = all.chain(averages).collect();
    let at = |step: usize| {
        let whole = all.iter().map(|(tensor, volume)| {
            let mut whole = vec![f64::NAN; *volume];
            for (rank, held) in ranks.iter().enumerate() {
                for (name, values) in &held[step] {
                    if persistent_name(name) == tensor {
                        put(&mut whole, values, program, rank, name);
                    }
                }
            }
            let is_known = whole.iter().all(|value| !value.is_nan());
            assert!(is_known || step > 0, "somebody holds {tensor}");
            (tensor.clone(), whole)
        });
        whole.collect()
    };
    (0..ranks[0].len()).map(at).collect()
}

/// Copies the shard of a rank into a parameter; elements that are already there must be equal.
fn put(whole: &mut [f64], values: &[f64], program: &Program, rank: Rank, name: &str) {
    let buffers = &program.body(rank).buffers;
    let buffer = buffers.iter().find(|buffer| buffer.name == name);
    let buffer = buffer.expect("a parameter has a buffer");
    let (mesh, coord) = (&program.mesh, program.mesh.coord(rank));
    let known = shard_of(whole, buffer, mesh, &coord);
    let same = |(known, new): (&f64, &f64)| known.is_nan() || known.to_bits() == new.to_bits();
    let drifted = !known.iter().zip(values).all(same);
    assert!(
        !drifted,
        "{}: replicas of {name} drifted apart on rank {rank}",
        program.title
    );
    match &buffer.tensor {
        Some(tensor) => put_shard(whole, values, tensor, mesh, &coord),
        None => whole.copy_from_slice(values),
    }
}

fn run_rank(
    setup: &Setup<'_>,
    [fetch, train, evaluate]: &[Program; 3],
    rank: Rank,
    runner: &mut RankRunner<'_>,
) -> Result<Outcome, RunError> {
    let body = train.body(rank);
    fill_with_nan(runner);
    write_parameters(setup, train, rank, &runner.arena.memory(body));
    let all: Vec<usize> = (0..setup.samples.values.len()).collect();
    let mut inputs = Inputs {
        step: 0,
        epoch: 0,
        seed: setup.seed,
        learning_rate: setup.learning_rate,
        loss_scale: setup.loss_scale,
        skipped: 0,
        samples: all.clone(),
        next_samples: all,
        next_epoch: 0,
    };
    let mut outcome = Outcome::default();
    outcome
        .parameters
        .push(read_parameters(setup, &runner.arena.memory(body)));
    runner.step(fetch.body(rank), &inputs)?;
    for _ in 0..setup.steps {
        inputs.step += 1;
        let report = runner.step(body, &inputs)?;
        outcome.losses.push(report.outputs[0][0]);
        outcome
            .parameters
            .push(read_parameters(setup, &runner.arena.memory(body)));
    }
    runner.step(fetch.body(rank), &inputs)?;
    let report = runner.step(evaluate.body(rank), &inputs)?;
    outcome.evaluation = report.outputs.into_iter().flatten().collect();
    Ok(outcome)
}

/// Fills the arena with NaN, so that reads of uninitialized elements are noticed.
fn fill_with_nan(runner: &mut RankRunner<'_>) {
    let bytes = runner.arena.bytes();
    let elements = bytes.0 as usize / 8;
    let buffer = partita_program::Buffer {
        name: "arena".to_owned(),
        role: Role::Workspace,
        dtype: Dtype::F64,
        dims: [1, 1, 1, 1, elements],
        tensor: None,
        offset: partita_space::Bytes(0),
    };
    let view = buffer.view(partita_program::BufferId(0));
    let body = partita_program::Body {
        buffers: vec![buffer],
        arena: bytes,
        ..partita_program::Body::default()
    };
    let memory = runner.arena.memory(&body);
    memory.unpack(&view, &vec![f64::NAN; elements], false);
}

/// Parameters and state of the first body, with the index in the graph; optimizer state as `None`.
fn persistent<'m>(
    setup: &'m Setup<'_>,
    memory: &Memory<'m>,
) -> Vec<(partita_program::View, Option<usize>)> {
    let body = memory.body();
    (0..body.buffers.len())
        .filter(|&id| body.buffers[id].role.is_persistent())
        .filter(|&id| body.buffers[id].role != Role::Staging)
        .map(|id| {
            let buffer = &body.buffers[id];
            let name = model_name(&buffer.name, buffer.role);
            let named = setup.graph.parameters.iter().position(|p| p.name == name);
            let view = buffer.view(partita_program::BufferId(id as u32));
            (view, named)
        })
        .collect()
}

fn write_parameters(setup: &Setup<'_>, program: &Program, rank: Rank, memory: &Memory<'_>) {
    let (mesh, coord) = (&program.mesh, program.mesh.coord(rank));
    for (view, named) in persistent(setup, memory) {
        let values = match named {
            Some(index) => {
                let buffer = memory.body().buffer(view.buffer);
                shard_of(&setup.parameters[index], buffer, mesh, &coord)
            }
            None => vec![0.0; view.volume()],
        };
        match setup.dtype {
            Dtype::F64 => memory.unpack(&view, &values, false),
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 => {
                let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
                memory.unpack(&view, &values, false);
            }
            Dtype::I16 => panic!("no parameters in 16-bit integers"),
        }
    }
}

fn read_parameters(setup: &Setup<'_>, memory: &Memory<'_>) -> Vec<(String, Vec<f64>)> {
    let mut all = Vec::new();
    for (view, named) in persistent(setup, memory) {
        if named.is_none() {
            continue;
        }
        let name = memory.body().buffer(view.buffer).name.clone();
        let mut values = Vec::new();
        match setup.dtype {
            Dtype::F64 => memory.pack::<f64>(&view, &mut values),
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 => {
                let mut narrow = Vec::new();
                memory.pack::<f32>(&view, &mut narrow);
                values.extend(narrow.into_iter().map(f64::from));
            }
            Dtype::I16 => panic!("no parameters in 16-bit integers"),
        }
        all.push((name, values));
    }
    all
}
