use crate::args::LowerArgs;
use crate::error::CliError;
use crate::here::{self, Ranks};
use crate::lowered::{Lowered, lowered};
use crate::machine;
use crate::predict::costs;
use crate::search::{staged, staged_here};
use crate::table::write_json;
use partita_lower::{Request, Strategy};
use partita_program::{Body, Count, Program, Role};
use partita_space::Rank;
use serde_json::{Value, json};
use std::io::Write;

/// Prints the program, or what can be counted in it.
pub fn run(args: &LowerArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let stages = |request: &Request<'_>| stages(args, request);
    let lowered = lowered(
        &args.training,
        &args.strategy,
        args.kernels,
        args.kind,
        &stages,
    )?;
    if args.json {
        return write_json(out, &record(&lowered));
    }
    out.write_all(lowered.program.to_text().as_bytes())?;
    Ok(())
}

/// The strategy with the layers of all stages.
fn stages(args: &LowerArgs, request: &Request<'_>) -> Result<Strategy, CliError> {
    let strategy = request.strategy.check_layout(request.graph, request.batch);
    strategy.map_err(|error| CliError::user(&error))?;
    let Some(name) = &args.machine else {
        let resolved = request.strategy.resolved(request.graph);
        return resolved.map_err(|error| CliError::user(&error));
    };
    if machine::is_here(name) {
        let kernels = here::kernels(args.kernels);
        let menu = kernels.menu(here::THREADS);
        let request = Request {
            menu: &*menu,
            ..*request
        };
        let memory = args
            .memory
            .unwrap_or_else(|| here::memory(args.training.ranks));
        let ranks = Ranks::threads(args.training.ranks, here::THREADS);
        return staged_here(&request, memory, kernels, ranks);
    }
    let machine = machine::resolve(name)?;
    machine::check_capacity(&machine, args.training.ranks)?;
    let memory = args.memory.unwrap_or(machine.device.memory.value);
    staged(request, memory, costs(&machine, true)?.as_ref())
}

fn record(lowered: &Lowered) -> Value {
    let program = &lowered.program;
    json!({
        "digest": program.digest(),
        "model": lowered.graph.name,
        "strategy": lowered.strategy.to_string(),
        "kind": program.kind,
        "dtype": program.dtype,
        "batch": program.batch,
        "ranks": program.mesh.ranks(),
        "memory_bytes_max": program.memory_max(),
        "count": count_record(&program.count()),
        "classes": classes(program),
    })
}

fn classes(program: &Program) -> Vec<Value> {
    let sizes = program.class_sizes();
    let firsts = program.representatives();
    program
        .bodies
        .iter()
        .zip(sizes)
        .zip(firsts)
        .map(|((body, ranks), first)| class_record(body, ranks, first))
        .collect()
}

fn class_record(body: &Body, ranks: usize, first: Rank) -> Value {
    json!({
        "ranks": ranks,
        "first_rank": first,
        "tasks": body.tasks.len(),
        "buffers": body.buffers.len(),
        "memory_bytes": body.memory(),
        "arena_bytes": body.arena,
        "staging_bytes": body.staging,
        "parameter_bytes": body.bytes_of(Role::Parameter),
        "count": count_record(&body.count()),
    })
}

fn count_record(count: &Count) -> Value {
    json!({
        "flops": count.flops,
        "read_bytes": count.read,
        "written_bytes": count.written,
        "messages": count.messages,
        "message_bytes": count.message_bytes,
        "collectives": count.collectives,
        "collective_bytes": count.collective_bytes,
        "load_bytes": count.load_bytes,
    })
}
