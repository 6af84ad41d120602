use super::run_file::RunFile;
use crate::error::CliError;
use partita_data::DType;
use partita_graph::Graph;
use partita_lower::{Request, SampleFormat, Strategy, lower};
use partita_program::{Dtype, Menu, Program, ProgramKind, verify};
use partita_run::{Played, batch_sizes};

/// Lowers and verifies every program of a run: steps of full size and of the rest, for training and
/// for evaluation, each with the one that reads its first samples.
///
/// Errors: a strategy that does not fit, a kernel that is not offered, a program that is not sound.
pub fn programs(
    run: &RunFile,
    graph: &Graph,
    strategy: &Strategy,
    stored: DType,
    training: usize,
    validation: usize,
) -> Result<Vec<Played>, CliError> {
    let menu = run.kernels.menu(run.threads);
    let request = request(run, graph, strategy, stored, &*menu);
    let mut played = Vec::new();
    for (kind, samples) in [
        (ProgramKind::Train, training),
        (ProgramKind::Evaluate, validation),
    ] {
        for batch in batch_sizes(samples, run.batch) {
            let one = |kind| {
                verified(&Request {
                    kind,
                    batch,
                    ..request
                })
            };
            let (step, fetch) = (one(kind)?, one(ProgramKind::Fetch)?);
            played.push(Played { step, fetch });
        }
    }
    Ok(played)
}

/// The training step of a run.
pub fn request<'r>(
    run: &RunFile,
    graph: &'r Graph,
    strategy: &'r Strategy,
    stored: DType,
    menu: &'r dyn Menu,
) -> Request<'r> {
    Request {
        graph,
        strategy,
        batch: run.batch,
        kind: ProgramKind::Train,
        dtype: run.precision.dtype(),
        optimizer: run.optimizer,
        clip: run.clip,
        samples: SampleFormat {
            dtype: staging_dtype(stored),
            transform: run.transform,
        },
        menu,
    }
}

fn staging_dtype(stored: DType) -> Dtype {
    match stored {
        DType::Int16 => Dtype::I16,
        DType::Float32 => Dtype::F32,
    }
}

fn verified(request: &Request<'_>) -> Result<Program, CliError> {
    let program = lower(request).map_err(|error| CliError::user(&error))?;
    verify::verify(&program).map_err(|faults| {
        CliError::Run(format!(
            "the program `{}` is not sound, which is a fault of Partita, not of the run: {faults}",
            program.title
        ))
    })?;
    Ok(program)
}
