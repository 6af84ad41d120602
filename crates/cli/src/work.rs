//! Work that more than one verb does: training, making a dataset, writing JSON.

use crate::error::CliError;
use crate::interrupt;
use partita::{Context, DatasetError, TrainRequest, Trained};
use partita_data::DatasetSummary;
use partita_report::text;
use serde::Serialize;
use std::io::Write;

/// Writes JSON, indented, with a line end.
pub fn write_json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CliError> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Trains and writes the result. Nothing on ranks other than 0.
pub fn train(
    context: &Context<'_>,
    request: &TrainRequest,
    json: bool,
    out: &mut dyn Write,
) -> Result<Option<Trained>, CliError> {
    interrupt::release()?;
    let Some(mut trained) = partita::train(context, request)? else {
        return Ok(None);
    };
    let printed = match json {
        true => write_json(out, &trained.result),
        false => text::train(&trained, out).map_err(CliError::from),
    };
    // Where the files are matters more than a reader who has left.
    if let Some(error) = trained.misplaced.take() {
        return Err(error.into());
    }
    printed.map(|()| Some(trained))
}

/// Makes a dataset and writes what it holds.
pub fn made(
    make: &dyn Fn() -> Result<DatasetSummary, DatasetError>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    interrupt::listen()?;
    Ok(text::dataset(&make()?, out)?)
}
