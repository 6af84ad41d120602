use partita_graph::Graph;
use partita_space::{AXES, Axis, Mesh};
use std::fmt;
use std::str::FromStr;

/// Ranks of the largest mesh.
const RANKS_MAX: usize = 1 << 20;

/// How the training is split. The short form reads `data=4,depth=2,height=2`; axes that are not named
/// have extent 1, `overlap=off` keeps convolutions whole instead of hiding exchanges behind them, and
/// `fuse=off` gives every operation a pass over memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strategy {
    extents: [usize; 7],
    /// Whether a convolution is split in interior and border so that its exchange can hide.
    pub overlap: bool,
    /// Whether kernels are fused, and weights packed once for several, where the menu offers it.
    pub fuse: bool,
}

/// A strategy that cannot be read, or cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StrategyError {
    /// Not of the form.
    #[error(
        "strategy `{text}`: `{word}` is not of the form axis=number, the number at least 1, or \
         overlap=on|off or fuse=on|off; a strategy reads like `data=2,depth=2`"
    )]
    Form {
        /// The whole.
        text: String,
        /// The part that does not fit.
        word: String,
    },
    /// A key that is no axis.
    #[error("strategy `{text}`: there is no axis `{name}`; the axes are {known}{nearest}")]
    UnknownAxis {
        /// The whole.
        text: String,
        /// The part that does not fit.
        name: String,
        /// All keys.
        known: String,
        /// A hint.
        nearest: String,
    },
    /// An axis named twice.
    #[error("strategy `{text}`: `{name}` is given twice; give it once")]
    Twice {
        /// The whole.
        text: String,
        /// The key.
        name: String,
    },
    /// More ranks than can be numbered.
    #[error("strategy `{text}` is for more than {most} ranks; at most {most} are possible")]
    TooMany {
        /// The whole.
        text: String,
        /// The bound.
        most: usize,
    },
    /// The number of ranks does not fit.
    #[error(
        "strategy `{strategy}` is for {product} rank(s), but {ranks} are asked for; choose ranks = \
         {product}, or {nearest}"
    )]
    Ranks {
        /// The strategy.
        strategy: String,
        /// Product of its extents.
        product: usize,
        /// As asked for.
        ranks: usize,
        /// A strategy that fits.
        nearest: String,
    },
    /// An axis that nothing of the model can carry.
    #[error("strategy `{strategy}`: {reason}; the axes possible here are {possible}")]
    Axis {
        /// The strategy.
        strategy: String,
        /// Which axis and why.
        reason: String,
        /// Those that can be used.
        possible: String,
    },
    /// A split finer than what it splits.
    #[error(
        "strategy `{strategy}` splits {what} of {extent} into {parts} parts; at most {extent} are \
         possible, the nearest valid choice is {axis}={extent}"
    )]
    TooFine {
        /// The strategy.
        strategy: String,
        /// `the mini-batch`, `the depth of the input`.
        what: String,
        /// The axis.
        axis: &'static str,
        /// What there is to split.
        extent: usize,
        /// As asked for.
        parts: usize,
    },
}

impl Strategy {
    /// One rank.
    pub fn single() -> Self {
        Self {
            extents: [1; 7],
            overlap: true,
            fuse: true,
        }
    }

    /// From the extents of the four axes.
    pub fn hybrid(data: usize, [depth, height, width]: [usize; 3]) -> Self {
        Self {
            extents: [data, depth, height, width, 1, 1, 1],
            overlap: true,
            fuse: true,
        }
    }

    /// Extent of an axis.
    pub fn extent(&self, axis: Axis) -> usize {
        self.extents[axis.index()]
    }

    /// Ranks it is for.
    pub fn ranks(&self) -> usize {
        self.extents.iter().product()
    }

    /// Its mesh.
    pub fn mesh(&self) -> Mesh {
        Mesh::new(self.extents)
    }

    /// Checks it against a number of ranks.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), StrategyError> {
        if self.ranks() == ranks {
            return Ok(());
        }
        let mut fitted = *self;
        let spatial = self.ranks() / self.extent(Axis::Data);
        let nearest = if ranks.is_multiple_of(spatial) {
            fitted.extents[Axis::Data.index()] = ranks / spatial;
            fitted
        } else {
            Strategy {
                extents: [ranks, 1, 1, 1, 1, 1, 1],
                ..*self
            }
        };
        Err(StrategyError::Ranks {
            strategy: self.to_string(),
            product: self.ranks(),
            ranks,
            nearest: format!("`{nearest}` for {ranks}"),
        })
    }

    /// Checks it against a model and a mini-batch.
    ///
    /// Errors: an axis that the model cannot carry, a split finer than the input's extent, a
    /// mini-batch smaller than the data axis.
    pub fn check(&self, graph: &Graph, batch: usize) -> Result<(), StrategyError> {
        let spatial = &[Axis::Depth, Axis::Height, Axis::Width][3 - graph.spatial_rank..];
        for axis in AXES {
            let possible = axis == Axis::Data || spatial.contains(&axis);
            if self.extent(axis) > 1 && !possible {
                let names: Vec<_> = spatial.iter().map(|axis| axis.name()).collect();
                return Err(StrategyError::Axis {
                    strategy: self.to_string(),
                    reason: format!("no operation of {} carries {}", graph.name, axis.name()),
                    possible: format!("data, {}", names.join(", ")),
                });
            }
        }
        let input = graph.nodes[0].shape.extent;
        let splits = [
            (Axis::Data, "the mini-batch", batch),
            (Axis::Depth, "the depth of the input", input[0]),
            (Axis::Height, "the height of the input", input[1]),
            (Axis::Width, "the width of the input", input[2]),
        ];
        for (axis, what, extent) in splits {
            let parts = self.extent(axis);
            if parts > extent {
                return Err(StrategyError::TooFine {
                    strategy: self.to_string(),
                    what: what.to_owned(),
                    axis: axis.name(),
                    extent,
                    parts,
                });
            }
        }
        Ok(())
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = AXES
            .into_iter()
            .filter(|&axis| self.extent(axis) > 1)
            .map(|axis| format!("{}={}", axis.name(), self.extent(axis)))
            .collect();
        if words.is_empty() {
            words.push("data=1".to_owned());
        }
        if !self.overlap {
            words.push("overlap=off".to_owned());
        }
        if !self.fuse {
            words.push("fuse=off".to_owned());
        }
        f.write_str(&words.join(","))
    }
}

impl FromStr for Strategy {
    type Err = StrategyError;

    fn from_str(text: &str) -> Result<Self, StrategyError> {
        let mut strategy = Strategy::single();
        let mut seen: Vec<&str> = Vec::new();
        for word in text.split(',').map(str::trim) {
            let form = || StrategyError::Form {
                text: text.to_owned(),
                word: word.to_owned(),
            };
            let (name, value) = word.split_once('=').ok_or_else(form)?;
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(StrategyError::Twice {
                    text: text.to_owned(),
                    name: name.to_owned(),
                });
            }
            seen.push(name);
            if let "overlap" | "fuse" = name {
                let choice = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(form()),
                };
                match name {
                    "overlap" => strategy.overlap = choice,
                    _ => strategy.fuse = choice,
                }
                continue;
            }
            let axis = Axis::from_name(name).ok_or_else(|| unknown_axis(text, name))?;
            let extent: usize = value.parse().map_err(|_| form())?;
            if extent == 0 {
                return Err(form());
            }
            strategy.extents[axis.index()] = extent;
            let product = strategy
                .extents
                .iter()
                .try_fold(1usize, |all, &one| all.checked_mul(one));
            if product.is_none_or(|ranks| ranks > RANKS_MAX) {
                return Err(StrategyError::TooMany {
                    text: text.to_owned(),
                    most: RANKS_MAX,
                });
            }
        }
        Ok(strategy)
    }
}

fn unknown_axis(text: &str, name: &str) -> StrategyError {
    let names: Vec<_> = AXES.into_iter().map(Axis::name).collect();
    let nearest = names
        .iter()
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .min()
        .filter(|(distance, _)| *distance <= 3)
        .map_or_else(String::new, |(_, known)| {
            format!("; did you mean `{known}`?")
        });
    StrategyError::UnknownAxis {
        text: text.to_owned(),
        name: name.to_owned(),
        known: names.join(", "),
        nearest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_reads_as_it_prints() {
        for text in [
            "data=4,depth=2,height=2",
            "depth=8",
            "data=1",
            "width=3,overlap=off",
            "data=2,fuse=off",
        ] {
            assert_eq!(text.parse::<Strategy>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_strategies_name_the_nearest_choice() {
        let error = "dept=2".parse::<Strategy>().unwrap_err().to_string();
        assert!(error.contains("did you mean `depth`?"), "{error}");
        for text in [
            "depth",
            "depth=0",
            "depth=x",
            "depth=2,depth=2",
            "overlap=maybe",
            "",
        ] {
            assert!(text.parse::<Strategy>().is_err(), "{text}");
        }
        let error = Strategy::hybrid(3, [2, 1, 1])
            .check_ranks(8)
            .unwrap_err()
            .to_string();
        assert!(error.contains("data=4,depth=2"), "{error}");
    }
}
