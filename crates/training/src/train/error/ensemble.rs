//! Errors of outputs that are averaged over weights and mirrored samples.

use partita_space::Help;
use std::path::PathBuf;

/// Outputs that cannot be averaged.
#[derive(Debug, thiserror::Error)]
pub enum EnsembleError {
    /// A dim to mirror that the samples of the model lack.
    #[error("--mirror {asked}: {}", lacking(model, possible))]
    NoDim {
        /// Name of the model.
        model: String,
        /// The dim.
        asked: &'static str,
        /// Those that can be mirrored.
        possible: Vec<&'static str>,
    },
    /// Weights that were trained on something else than the first ones.
    #[error(
        "--weights: the outputs of {} cannot be averaged with those of {}: its {what} are {own}; those of the first are \
         {expected}{}",
        file.display(), first.display(),
        Help::advice(format_args!("average weights of one network that were trained on the same {what}"))
    )]
    Unlike {
        /// File of the weights.
        file: PathBuf,
        /// File of the first ones.
        first: PathBuf,
        /// What differs.
        what: &'static str,
        /// What it is.
        own: String,
        /// What it is of the first ones.
        expected: String,
    },
}

fn lacking(model: &str, possible: &[&str]) -> String {
    if possible.is_empty() {
        let help = Help::advice("leave out `--mirror`");
        return format!(
            "samples of model `{model}` have no spatial dim with several positions{help}"
        );
    }
    let help =
        Help::possible(possible.join(", ")).code(format_args!("--mirror {}", possible.join(",")));
    format!("samples of model `{model}` do not have this dim, or one position along it{help}")
}
