//! Shared by several verbs: training, making a dataset, writing results.

use crate::error::CliError;
use crate::interrupt;
use partita::{Context, DatasetError, TrainRequest, Trained};
use partita_data::DatasetSummary;
use partita_report::text;
use serde::Serialize;
use std::io::{self, Write};

/// Writes a result as JSON or as text.
pub fn write_result<T: Serialize>(
    out: &mut dyn Write,
    json: bool,
    result: &T,
    text: impl FnOnce(&T, &mut dyn Write) -> io::Result<()>,
) -> Result<(), CliError> {
    if json {
        write_json(out, result)
    } else {
        Ok(text(result, out)?)
    }
}

/// Writes indented JSON and a newline.
pub fn write_json(out: &mut dyn Write, value: &impl Serialize) -> Result<(), CliError> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Trains and writes the result. `None` on ranks other than 0.
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
    let printed = if json {
        write_json(out, &trained.result)
    } else {
        text::train(&trained, out).map_err(CliError::from)
    };
    // Where the files are matters more than a closed pipe.
    if let Some(error) = trained.misplaced.take() {
        return Err(error.into());
    }
    printed.map(|()| Some(trained))
}

/// Makes a dataset and writes its summary.
pub fn make_dataset(
    make: &dyn Fn() -> Result<DatasetSummary, DatasetError>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    interrupt::listen()?;
    Ok(text::dataset(&make()?, out)?)
}
