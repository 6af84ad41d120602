//! The instruction level of the CPU kernels, for a whole process.

use crate::error::CliError;
use partita_cpu::Level;
use std::env;
use std::sync::OnceLock;

/// Names a lower level than the processor has, as in a comparison with another machine.
const VARIABLE: &str = "PARTITA_VECTORS";

static LEVEL: OnceLock<Level> = OnceLock::new();

/// The level that all kernels of this process use: the highest, or what [`choose`] was told.
pub fn level() -> Level {
    *LEVEL.get_or_init(Level::detect)
}

/// Reads the level from the environment.
///
/// Errors: a word that names no level, or one that this processor lacks.
pub fn choose() -> Result<(), CliError> {
    if let Some(word) = env::var_os(VARIABLE).filter(|word| !word.is_empty()) {
        let level = parse(&word.to_string_lossy()).map_err(CliError::User)?;
        LEVEL.get_or_init(|| level);
    }
    Ok(())
}

fn parse(word: &str) -> Result<Level, String> {
    let names: Vec<&str> = Level::all_available().map(Level::name).collect();
    let possible = names.join(", ");
    match Level::named(word) {
        Some(level) if level.available() => Ok(level),
        Some(level) => Err(format!(
            "{VARIABLE}={word}: this processor has no {}; possible are {possible}, the highest is {}",
            level.name(),
            Level::detect().name()
        )),
        None => {
            let nearest = partita_graph::nearest(word, names).unwrap_or_default();
            Err(format!(
                "{VARIABLE}={word} names no instruction level; possible are {possible}; did you mean \
                 `{nearest}`?"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_available_levels_are_read() {
        for level in Level::all_available() {
            assert_eq!(parse(level.name()), Ok(level));
            assert_eq!(parse(&level.name().to_uppercase()), Ok(level));
        }
    }

    #[test]
    fn other_words_are_refused_with_the_nearest() {
        let refusal = parse("portabel").unwrap_err();
        assert!(refusal.contains("`portable`"), "{refusal}");
        let lacking = Level::ALL.into_iter().find(|level| !level.available());
        let lacking = lacking.expect("no processor has the vectors of two makers");
        let refusal = parse(lacking.name()).unwrap_err();
        assert!(refusal.contains("this processor has no"), "{refusal}");
    }
}
