use crate::args::{KindName, PredictArgs};
use crate::error::CliError;
use crate::explain::{self, CostsOf, Explanation, Subject, write_changes, write_findings};
use crate::here::{self, Here, Ranks};
use crate::lowered::{Lowered, lower_verified, lowered, request, strategy};
use crate::search::{staged, staged_here};
use crate::table::{Side, Table, write_json, write_pairs};
use crate::{machine, menu, model};
use partita_cluster::Machine;
use partita_lower::Request;
use partita_oracle::simulate::Category;
use partita_oracle::{
    CostBasis, CostError, Costs, MachineCosts, Prediction, Scaled, SimulateError, Simulation,
    Speeds, TaskPrediction, simulate,
};
use partita_plan::{ClosedForm, Known, closed_form};
use partita_program::{Menu, Program};
use partita_run::Footprint;
use partita_space::{Bytes, Seconds};
use serde::Serialize;
use std::io::Write;

/// Steps that are played; without jitter in the model, all are alike.
const STEPS: usize = 1;

/// A prediction with what it was asked for.
#[derive(Serialize)]
struct Record<'a> {
    model: &'a str,
    strategy: String,
    machine: &'a str,
    batch: usize,
    memory_bytes_device: Bytes,
    no_io: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    closed_form: Option<Closed>,
    #[serde(flatten)]
    prediction: &'a Prediction,
    explanation: &'a Explanation,
}

/// What the closed forms say, where the strategy has one.
#[derive(Serialize)]
struct Closed {
    strategy: &'static str,
    seconds: Seconds,
    compute_seconds: Seconds,
    communication_seconds: Seconds,
    memory_bytes: Bytes,
}

/// On what a prediction is made.
struct Place<'a> {
    name: &'a str,
    /// Of a rank.
    memory: Bytes,
    costs: &'a CostsOf<'a>,
    kernels: &'a dyn Menu,
}

/// Predicts time and memory of a training step.
pub fn run(args: &PredictArgs, out: &mut dyn Write) -> Result<(), CliError> {
    if machine::is_here(&args.machine) {
        return run_here(args, out);
    }
    let machine = machine::resolve(&args.machine)?;
    let asked = &args.training;
    machine::check_capacity(&machine, asked.ranks)?;
    let costs = costs(&machine, args.no_io)?;
    let memory = args.memory.unwrap_or(machine.device.memory.value);
    let stages = |request: &Request<'_>| staged(request, memory, costs.as_ref());
    let lowered = lowered(
        asked,
        &args.strategy,
        machine::kernels(&machine, args.kernels),
        KindName::Train,
        &stages,
    )?;
    let place = Place {
        name: &machine.name,
        memory,
        costs: &|_| Ok(Box::new(Scaled::new(costs.as_ref(), Speeds::default()))),
        kernels: &*menu::of(machine::kernels(&machine, args.kernels)),
    };
    let closed = closed(&place, args, &lowered, costs.as_ref())?;
    answer(args, &lowered, &place, closed, out)
}

fn closed(
    place: &Place<'_>,
    args: &PredictArgs,
    lowered: &Lowered,
    costs: &dyn Costs,
) -> Result<Option<Closed>, CliError> {
    let asked = &args.training;
    let (graph, strategy) = (&lowered.graph, &lowered.strategy);
    let training = request(graph, strategy, asked, KindName::Train, place.kernels);
    let form = closed_form(&training, &Known(costs)).map_err(CliError::Run)?;
    Ok(form.map(|ClosedForm { split, estimate }| Closed {
        strategy: split.name(),
        seconds: estimate.seconds(),
        compute_seconds: estimate.compute,
        communication_seconds: estimate.communication,
        memory_bytes: estimate.memory,
    }))
}

/// The same from measurements of this machine, whose kernels are pinned.
fn run_here(args: &PredictArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let asked = &args.training;
    let kernels = here::kernels(args.kernels);
    let menu = kernels.menu(here::THREADS);
    let graph = model::resolve(&asked.model)?;
    let strategy = strategy(&args.strategy, asked.ranks, asked.batch)?;
    let request = request(&graph, &strategy, asked, KindName::Train, &*menu);
    let memory = args.memory.unwrap_or_else(|| here::memory(asked.ranks));
    let strategy = staged_here(
        &request,
        memory,
        kernels,
        Ranks::threads(asked.ranks, here::THREADS),
    )?;
    let program = lower_verified(&Request {
        strategy: &strategy,
        ..request
    })?;
    if program.memory_max() > memory {
        return Err(CliError::User(format!(
            "{strategy} needs {} on the largest rank, and {memory} are available here to each of \
             {} ranks, too little to measure its kernels; possible are a smaller batch or model, \
             or a machine file",
            program.memory_max(),
            asked.ranks
        )));
    }
    let costs = |program: &Program| -> Result<Box<dyn Costs>, CliError> {
        let ranks = program.mesh.ranks();
        let mut here = Here::new(kernels, ranks, here::THREADS, args.no_io)?;
        Ok(Box::new(here.costs(program)?))
    };
    let lowered = Lowered {
        strategy,
        program,
        graph: graph.clone(),
    };
    let place = Place {
        name: here::NAME,
        memory,
        costs: &costs,
        kernels: &*menu,
    };
    // Kernels of a single rank would have to be measured beside those of the program.
    answer(args, &lowered, &place, None, out)
}

fn answer(
    args: &PredictArgs,
    lowered: &Lowered,
    place: &Place<'_>,
    closed_form: Option<Closed>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let program = &lowered.program;
    let costs = (place.costs)(program)?;
    let simulation = play(program, costs.as_ref())?;
    let mut prediction = Prediction::of(program, &simulation, args.tasks);
    let played = (costs.as_ref(), &simulation);
    let explanation = explained(args, lowered, place, &prediction, played)?;
    if place.name == here::NAME {
        let warning = here::sharing(program.mesh.ranks());
        prediction.limits.splice(0..0, warning);
    }
    if prediction.memory_bytes_max > place.memory {
        prediction
            .limits
            .insert(0, misfit(&prediction, place.memory));
    }
    if args.json {
        let record = Record {
            model: &lowered.graph.name,
            strategy: lowered.strategy.to_string(),
            machine: place.name,
            batch: lowered.program.batch,
            memory_bytes_device: place.memory,
            no_io: args.no_io,
            closed_form,
            prediction: &prediction,
            explanation: &explanation,
        };
        return write_json(out, &record);
    }
    write_report(lowered, place, (&prediction, closed_form.as_ref()), out)?;
    writeln!(out)?;
    write_findings(&explanation.findings, usize::MAX, out)?;
    write_changes(&explanation, out)?;
    if let Some(tasks) = &prediction.tasks {
        writeln!(out)?;
        write_tasks(tasks, out)?;
    }
    Ok(())
}

fn explained(
    args: &PredictArgs,
    lowered: &Lowered,
    place: &Place<'_>,
    prediction: &Prediction,
    (own, simulation): (&dyn Costs, &Simulation),
) -> Result<Explanation, CliError> {
    let (graph, strategy) = (&lowered.graph, &lowered.strategy);
    let training = request(
        graph,
        strategy,
        &args.training,
        KindName::Train,
        place.kernels,
    );
    let subject = Subject {
        training,
        program: &lowered.program,
        prediction,
        memory: place.memory,
        own,
        costs: place.costs,
    };
    let mut explanation = Explanation::new(explain::findings(&subject, simulation)?);
    if args.explain {
        explanation.what_ifs = explain::changes(&subject)?;
        explanation.scaling = Some(explain::scaling(&subject)?);
    }
    Ok(explanation)
}

/// Costs on a machine, with or without those of reading.
///
/// Errors: a machine of which it is not known how fast it reads.
pub fn costs(machine: &Machine, no_io: bool) -> Result<Box<dyn Costs>, CliError> {
    let costs = MachineCosts::new(machine.clone());
    if no_io {
        let in_memory = Speeds {
            reading: f64::INFINITY,
            ..Speeds::default()
        };
        return Ok(Box::new(Scaled::new(Box::new(costs), in_memory)));
    }
    let reading = costs.load(0, Bytes(1), 1);
    reading.map_err(|error| cost_error(&SimulateError::Cost(error)))?;
    Ok(Box::new(costs))
}

/// A step of a program, played.
///
/// Errors: a cost that cannot be had.
pub fn play(program: &Program, costs: &dyn Costs) -> Result<Simulation, CliError> {
    let played = simulate(
        program,
        costs,
        machine::mode(costs, program.mesh.ranks()),
        STEPS,
    );
    played.map_err(|error| cost_error(&error))
}

/// A fact that the machine file lacks is the user's to add; all else is a fault of the program.
pub fn cost_error(error: &SimulateError) -> CliError {
    match error {
        SimulateError::Cost(CostError::Missing { key: "io", .. }) => {
            CliError::User(format!("{error}; `--no-io` leaves reading out"))
        }
        SimulateError::Cost(_) => CliError::user(error),
        SimulateError::Peer { .. }
        | SimulateError::Unmatched { .. }
        | SimulateError::Standstill { .. }
        | SimulateError::NoSteps => CliError::run(error),
    }
}

fn misfit(prediction: &Prediction, device_memory: Bytes) -> String {
    format!(
        "It does not fit: the largest rank needs {}, its device has {device_memory}; split a \
         sample over more ranks or lower the batch.",
        prediction.memory_bytes_max
    )
}

fn write_report(
    lowered: &Lowered,
    place: &Place<'_>,
    (prediction, closed_form): (&Prediction, Option<&Closed>),
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let basis = match prediction.basis {
        CostBasis::Modelled => "modelled from the facts of the machine file",
        CostBasis::Measured => "measured on the machine",
        CostBasis::Calibrated => "from other kernels measured on the machine",
    };
    let memory = format!(
        "{} of {} on the largest rank, {} of that beside its arena",
        prediction.memory_bytes_max,
        place.memory,
        prediction.memory.beside_arena()
    );
    let ranks = format!("{} in {} classes", prediction.ranks, prediction.classes);
    let mut pairs = vec![
        ("model", lowered.graph.name.clone()),
        ("strategy", lowered.strategy.to_string()),
        ("machine", place.name.to_owned()),
        ("ranks", ranks),
        ("batch", lowered.program.batch.to_string()),
        ("program", prediction.digest.clone()),
        ("seconds", basis.to_owned()),
        ("iteration", prediction.iteration_seconds.to_string()),
        ("samples/s", format!("{:.2}", prediction.samples_per_second)),
        ("memory", memory),
    ];
    if let Some(closed) = closed_form {
        let text = format!(
            "{} for {}: compute {}, communication {}; {}",
            closed.seconds,
            closed.strategy,
            closed.compute_seconds,
            closed.communication_seconds,
            closed.memory_bytes
        );
        pairs.push(("closed form", text));
    }
    write_pairs(out, &pairs)?;
    writeln!(out)?;
    write_breakdown(prediction, out)?;
    writeln!(out)?;
    write_memory(&prediction.memory, out)?;
    writeln!(out, "\n{}", prediction.bottleneck)?;
    for limit in &prediction.limits {
        writeln!(out, "- {limit}")?;
    }
    Ok(())
}

fn write_breakdown(prediction: &Prediction, out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("critical path", Side::Left),
        ("seconds", Side::Right),
        ("share", Side::Right),
    ]);
    let whole = prediction.iteration_seconds.0;
    for category in Category::ALL {
        let seconds = prediction.breakdown.of(category);
        let share = if whole > 0.0 { seconds.0 / whole } else { 0.0 };
        table.row(vec![
            category.to_string(),
            seconds.to_string(),
            format!("{:.1} %", 100.0 * share),
        ]);
    }
    table.write(out)
}

/// What the largest rank holds.
fn write_memory(memory: &Footprint, out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("memory", Side::Left),
        ("bytes", Side::Right),
        ("share", Side::Right),
    ]);
    let whole = memory.total().0.max(1) as f64;
    for (name, bytes) in memory.items().into_iter().filter(|item| item.1.0 > 0) {
        let share = format!("{:.1} %", 100.0 * bytes.0 as f64 / whole);
        table.row(vec![name.to_owned(), bytes.to_string(), share]);
    }
    table.write(out)
}

fn write_tasks(tasks: &[TaskPrediction], out: &mut dyn Write) -> Result<(), CliError> {
    let mut table = Table::new(&[
        ("class", Side::Right),
        ("task", Side::Right),
        ("phase", Side::Left),
        ("layer", Side::Left),
        ("kind", Side::Left),
        ("seconds", Side::Right),
    ]);
    for task in tasks {
        table.row(vec![
            task.class.to_string(),
            task.task.to_string(),
            task.phase.name().to_owned(),
            task.layer.clone(),
            task.kind.clone(),
            task.seconds.to_string(),
        ]);
    }
    table.write(out)
}
