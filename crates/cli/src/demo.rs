//! `partita demo`: makes a dataset, plans, trains a network, compares it with simple baselines.

use crate::args::DemoArgs;
use crate::error::CliError;
use crate::work::{make_dataset, train};
use partita::demo::{GRID, MODEL, UNIVERSES, baselines, has_universes, run_text, universes};
use partita::{Context, ErrorKind, TrainRequest, make_cosmology};
use partita_report::text;
use std::io::Write;
use std::path::Path;

/// Makes data, plans, trains and compares.
pub fn run(context: &Context, args: &DemoArgs, out: &mut dyn Write) -> Result<(), CliError> {
    let data = args.out.join("universes");
    if has_universes(&data) {
        writeln!(
            out,
            "using the universes of an earlier demo in {}",
            data.display()
        )?;
    } else {
        writeln!(
            out,
            "making {UNIVERSES} universes of {GRID}^3 voxels at four redshifts"
        )?;
        out.flush()?;
        make_dataset(&|| make_cosmology(context, &universes(&data)), out)?;
    }
    let run_file = args.out.join("run.toml");
    let model = args.out.join("pyramid.model");
    write_whole(&model, MODEL)?;
    let text = run_text(&model, &data, &args.out.join("training"), args.ranks);
    write_whole(&run_file, &text)?;
    writeln!(
        out,
        "\nplanning and training with {}:\n\n{text}",
        run_file.display()
    )?;
    out.flush()?;
    let request = TrainRequest {
        run_file,
        ..TrainRequest::default()
    };
    let Some(trained) = train(context, &request, false, out)? else {
        return Ok(());
    };
    writeln!(out)?;
    text::baselines(&baselines(&data, &trained.result)?, out)?;
    Ok(())
}

fn write_whole(path: &Path, text: &str) -> Result<(), CliError> {
    let written = partita_files::write_whole(path, text.as_bytes());
    written.map_err(|error| CliError::unwritable(path, &error, ErrorKind::Failure))
}
