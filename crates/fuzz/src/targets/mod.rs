//! The fuzz targets: each takes the bytes of a user's file, or of the other side of a connection, and processes them as
//! `partita` would, without training.
//!
//! A target returns errors of the reader. It panics if an invariant is violated: accepted input must print and
//! parse back as the same, and an error must be one of the request, never a failure of a valid request.

mod arrays;
mod files;
mod models;
mod programs;
mod wire;

use std::io;
use std::path::Path;

/// Format of inputs, which determines their mutations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Lines of words.
    Text,
    /// A binary format.
    Binary,
    /// A text inside a binary format.
    Mixed,
}

/// A reader of users' files.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and the folder of its corpus.
    pub name: &'static str,
    /// Format of its inputs.
    pub form: Form,
    /// Writes the files that all inputs share into a folder.
    pub prepare: fn(&Path) -> io::Result<()>,
    /// Runs one input, with a folder for its files.
    ///
    /// Errors: the error text. Panics if an invariant is violated.
    pub run: fn(&[u8], &Path) -> Result<(), String>,
}

/// All targets.
pub const TARGETS: [Target; 22] = [
    target("model", Form::Text, nothing, models::model),
    target("zoo", Form::Text, nothing, models::zoo),
    target("exported", Form::Text, nothing, models::exported),
    target("onnx", Form::Mixed, nothing, models::onnx),
    target(
        "strategy",
        Form::Text,
        models::write_models,
        models::strategy,
    ),
    target("run-file", Form::Text, nothing, files::run_file),
    target("machine", Form::Text, models::write_models, files::machine),
    target("dataset", Form::Text, files::write_dataset, files::dataset),
    target("hdf5", Form::Binary, nothing, files::hdf5),
    target("safetensors", Form::Mixed, nothing, files::safetensors),
    target("npy", Form::Mixed, nothing, arrays::npy),
    target("npz", Form::Binary, nothing, arrays::npz),
    target("zarr", Form::Text, arrays::write_chunks, arrays::zarr),
    target("nifti", Form::Binary, nothing, arrays::nifti),
    target("image", Form::Binary, nothing, arrays::image),
    target("tfrecord", Form::Binary, nothing, arrays::tfrecord),
    target(
        "statistics",
        Form::Text,
        arrays::write_statistics,
        arrays::statistics,
    ),
    target(
        "checkpoint",
        Form::Text,
        arrays::write_checkpoint,
        arrays::checkpoint,
    ),
    target("cache", Form::Binary, files::make_cache, files::cache),
    target("trace", Form::Text, nothing, programs::trace),
    target("program", Form::Text, nothing, programs::program),
    target("offload", Form::Mixed, wire::write_dataset, wire::wire),
];

const fn target(
    name: &'static str,
    form: Form,
    prepare: fn(&Path) -> io::Result<()>,
    run: fn(&[u8], &Path) -> Result<(), String>,
) -> Target {
    Target {
        name,
        form,
        prepare,
        run,
    }
}

fn nothing(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Runs a verb of `partita`. Panics on a failure that is not an error of the user.
fn verb(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    partita_cli::run_verb(arguments, &mut out)
        .map(|()| out)
        .map_err(|refusal| {
            assert_eq!(refusal.code, 2, "{arguments:?} failed: {}", refusal.text);
            assert!(
                !refusal.text.trim().is_empty(),
                "{arguments:?} refused without a reason"
            );
            refusal.text
        })
}

/// The bytes as UTF-8. Errors: invalid UTF-8, which `fs::read_to_string` refuses too.
fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

/// Writes a file of an input. Panics if that fails.
fn put(path: &Path, bytes: &[u8]) -> String {
    if let Err(error) = std::fs::write(path, bytes) {
        panic!("{} cannot be written: {error}", path.display());
    }
    path.display().to_string()
}
