//! Shared by several verbs: training, making a dataset, writing results.

use crate::error::CliError;
use crate::interrupt;
use partita::{Context, DatasetError, ErrorKind, LossHistory, TrainRequest, Trained};
use partita_data::DatasetSummary;
use partita_report::{curves, text};
use serde::Serialize;
use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

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

/// Writes a PNG image; it replaces another one, and no other file.
pub fn write_picture(path: &Path, png: &[u8]) -> Result<(), CliError> {
    let unwritable = |error: &dyn Display| CliError::unwritable(path, error, ErrorKind::Request);
    let signature = &png[..8.min(png.len())];
    if !partita_files::is_replaceable(path, signature) {
        return Err(unwritable(
            &"it exists and is not a PNG image; choose another file",
        ));
    }
    partita_files::write_whole(path, png).map_err(|error| unwritable(&error))
}

/// Trains and writes the result. `None` on ranks other than 0.
pub fn train(
    context: &Context,
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
    let folder = trained
        .result
        .files
        .result
        .as_deref()
        .and_then(|result| Path::new(result).parent());
    let curves = folder.and_then(|folder| write_curves(&trained.result.losses(folder.to_owned())));
    let printed = printed.and_then(|()| match curves.filter(|_| !json) {
        Some(path) => Ok(writeln!(out, "losses   {path}")?),
        None => Ok(()),
    });
    // Where the files are matters more than a closed pipe.
    if let Some(error) = trained.misplaced.take() {
        return Err(error.into());
    }
    printed.map(|()| Some(trained))
}

/// Writes the loss curves into the folder of a run, and gives the path of the SVG. They replace those of an earlier run,
/// also where there is nothing to draw, and are no reason for a run to fail.
pub fn write_curves(history: &LossHistory) -> Option<String> {
    let folder = &history.folder;
    let Some(figure) = curves(history) else {
        for name in ["loss.svg", "loss.png"] {
            // One that cannot be removed is of an earlier run, recognized by its time.
            let _ = fs::remove_file(folder.join(name));
        }
        return None;
    };
    for (name, bytes) in [
        ("loss.svg", figure.svg.as_bytes()),
        ("loss.png", &figure.png),
    ] {
        let path = folder.join(name);
        if let Err(error) = partita_files::write_whole(&path, bytes) {
            eprintln!(
                "partita: warning: {} cannot be written: {error}",
                path.display()
            );
            return None;
        }
    }
    Some(folder.join("loss.svg").display().to_string())
}

/// Makes a dataset and writes its summary.
pub fn make_dataset(
    make: &dyn Fn() -> Result<DatasetSummary, DatasetError>,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    interrupt::listen()?;
    Ok(text::dataset(&make()?, out)?)
}
