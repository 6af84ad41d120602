//! Models of publications, by name: `FAMILY@SIZE`, with `+SUFFIX` for variants.

mod cosmoflow;

use crate::infer::list;
use crate::{Graph, GraphError, nearest};
use thiserror::Error;

/// Why a name is not of the zoo.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ModelError {
    /// No such family.
    #[error(
        "there is no model `{asked}` in the zoo: possible are {possible}; nearest is `{nearest}`"
    )]
    UnknownModel {
        /// As given.
        asked: String,
        /// All names of the zoo.
        possible: String,
        /// The most similar of them.
        nearest: String,
    },
    /// A family without its input size.
    #[error("`{asked}` needs its input size: possible are {possible}; nearest is `{nearest}`")]
    MissingSize {
        /// As given.
        asked: String,
        /// Sizes.
        possible: String,
        /// The name with the smallest size.
        nearest: String,
    },
    /// A size that the family does not have.
    #[error(
        "`{asked}`: size {size:?} is not possible: possible are {possible}; nearest is `{nearest}`"
    )]
    BadSize {
        /// As given.
        asked: String,
        /// The part after `@`.
        size: String,
        /// Sizes.
        possible: String,
        /// The name with the nearest size.
        nearest: String,
    },
    /// A suffix that the family does not have.
    #[error(
        "`{asked}`: there is no variant `+{suffix}`: possible are {possible}; nearest is `{nearest}`"
    )]
    UnknownSuffix {
        /// As given.
        asked: String,
        /// The part after `+`.
        suffix: String,
        /// Suffixes.
        possible: String,
        /// The name with the nearest suffix.
        nearest: String,
    },
    /// The zoo's own description does not pass the checks of a graph.
    #[error("the zoo's `{asked}` is faulty")]
    Graph {
        /// As given.
        asked: String,
        /// What is wrong.
        source: Box<GraphError>,
    },
}

/// Kinds of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    CosmoFlow,
}

impl Family {
    const ALL: [Family; 1] = [Self::CosmoFlow];

    fn name(self) -> &'static str {
        match self {
            Self::CosmoFlow => "cosmoflow",
        }
    }

    /// Ascending.
    fn sizes(self) -> &'static [usize] {
        match self {
            Self::CosmoFlow => &cosmoflow::SIZES,
        }
    }

    /// Suffixes of its variants, the plain one empty.
    fn suffixes(self) -> &'static [&'static str] {
        match self {
            Self::CosmoFlow => &["", "bn"],
        }
    }

    fn build(self, name: &str, size: usize, suffix: &str) -> Result<Graph, GraphError> {
        match self {
            Self::CosmoFlow => cosmoflow::build(name, size, suffix == "bn"),
        }
    }
}

/// All names, smallest size first, each followed by its variants.
pub fn names() -> Vec<String> {
    let family_names = |family: Family| {
        let of_size = move |&size: &usize| {
            let suffixes = family.suffixes().iter();
            suffixes.map(move |suffix| full_name(family, size, suffix))
        };
        family.sizes().iter().flat_map(of_size)
    };
    Family::ALL.into_iter().flat_map(family_names).collect()
}

/// Builds the model of this name, `cosmoflow@128` or `cosmoflow@512+bn`.
///
/// Errors: a family, size or suffix that does not exist, with those that do and the nearest.
pub fn build(name: &str) -> Result<Graph, ModelError> {
    let (family_name, rest) = match name.split_once('@') {
        Some((family, rest)) => (family, Some(rest)),
        None => (name, None),
    };
    let Some(family) = Family::ALL
        .into_iter()
        .find(|family| family.name() == family_name)
    else {
        return Err(unknown_model(name));
    };
    let (size, suffix) = match rest {
        Some(rest) => rest.split_once('+').unwrap_or((rest, "")),
        None => return Err(missing_size(name, family)),
    };
    let size = find_size(name, family, size, suffix)?;
    if suffix.is_empty() == name.contains('+') || !family.suffixes().contains(&suffix) {
        return Err(unknown_suffix(name, family, size, suffix));
    }
    family
        .build(name, size, suffix)
        .map_err(|source| ModelError::Graph {
            asked: name.to_owned(),
            source: Box::new(source),
        })
}

fn full_name(family: Family, size: usize, suffix: &str) -> String {
    let plus = if suffix.is_empty() { "" } else { "+" };
    format!("{}@{size}{plus}{suffix}", family.name())
}

fn find_size(name: &str, family: Family, asked: &str, suffix: &str) -> Result<usize, ModelError> {
    let sizes = family.sizes();
    if let Some(&size) = sizes.iter().find(|size| size.to_string() == asked) {
        return Ok(size);
    }
    // What is no number is nearest to the smallest; the bound keeps distances to a huge one apart.
    let number = asked.parse::<f64>().unwrap_or(0.0).clamp(0.0, 1e9);
    let distance = |size: usize| (size as f64 - number).abs();
    let closest = sizes
        .iter()
        .copied()
        .min_by(|&a, &b| distance(a).total_cmp(&distance(b)));
    let suffix = if family.suffixes().contains(&suffix) {
        suffix
    } else {
        ""
    };
    Err(ModelError::BadSize {
        asked: name.to_owned(),
        size: asked.to_owned(),
        possible: list(sizes.iter().map(usize::to_string)),
        nearest: full_name(family, closest.unwrap_or(sizes[0]), suffix),
    })
}

fn unknown_model(name: &str) -> ModelError {
    let names = names();
    let closest = nearest(name, names.iter().map(String::as_str));
    ModelError::UnknownModel {
        asked: name.to_owned(),
        nearest: closest.unwrap_or("none").to_owned(),
        possible: list(&names),
    }
}

fn missing_size(name: &str, family: Family) -> ModelError {
    ModelError::MissingSize {
        asked: name.to_owned(),
        possible: list(family.sizes().iter().map(usize::to_string)),
        nearest: full_name(family, family.sizes()[0], ""),
    }
}

fn unknown_suffix(name: &str, family: Family, size: usize, suffix: &str) -> ModelError {
    let suffixes = || {
        family
            .suffixes()
            .iter()
            .copied()
            .filter(|suffix| !suffix.is_empty())
    };
    let closest = nearest(suffix, suffixes()).unwrap_or("");
    ModelError::UnknownSuffix {
        asked: name.to_owned(),
        suffix: suffix.to_owned(),
        possible: list(suffixes().map(|suffix| format!("+{suffix}"))),
        nearest: full_name(family, size, closest),
    }
}
