//! The text form of a strategy.

use super::{Halo, LayerChoice, LayerDim, RANKS_MAX, Shard, Strategy, StrategyError};
use partita_space::{AXES, Axis, AxisList};
use std::fmt;
use std::str::FromStr;

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
        if self.micro > 1 {
            words.push(format!("micro={}", self.micro));
        }
        if self.shard != Shard::Off {
            words.push(format!("shard={}", self.shard.name()));
        }
        f.write_str(&words.join(","))?;
        let split = self.mesh().split_axes();
        self.layers.iter().try_for_each(|choice| {
            let mut choice = choice.clone();
            choice.dims = choice.dims.map(|axes| Some(axes?.within(split)));
            write!(f, "; {choice}")
        })
    }
}

impl fmt::Display for LayerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.layers())?;
        let said = LayerDim::ALL.into_iter().zip(self.dims);
        let words = said.filter_map(|(dim, axes)| {
            let axes = axes?;
            Some(match axes.is_empty() {
                true => format!("{}=-", dim.name()),
                false => format!("{}={axes}", dim.name()),
            })
        });
        let again = self.recompute.map(|is_on| match is_on {
            true => "recompute=on".to_owned(),
            false => "recompute=off".to_owned(),
        });
        let halo = self.halo.map(|halo| format!("halo={}", halo.name()));
        let words = words.chain(again).chain(halo);
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Strategy {
    type Err = StrategyError;

    fn from_str(text: &str) -> Result<Self, StrategyError> {
        let mut segments = text.split(';');
        let mut strategy = axes(text, segments.next().unwrap_or_default())?;
        for segment in segments {
            let form = || StrategyError::Form {
                text: text.to_owned(),
                word: segment.trim().to_owned(),
            };
            let (layers, words) = segment.split_once(':').ok_or_else(form)?;
            let choice = layer_choice(text, layers.trim(), words)?;
            strategy.layers.push(choice.ok_or_else(form)?);
        }
        all_split(text, &strategy)?;
        Ok(strategy)
    }
}

/// That the axes named for layers split something: else a slip of the pen undoes a split.
fn all_split(text: &str, strategy: &Strategy) -> Result<(), StrategyError> {
    let split = |axis: &Axis| strategy.extent(*axis) > 1;
    for choice in &strategy.layers {
        for (dim, axes) in LayerDim::ALL.into_iter().zip(choice.dims) {
            let Some(axis) = axes.and_then(|axes| axes.iter().find(|axis| !split(axis))) else {
                continue;
            };
            let possible: Vec<String> = AXES
                .into_iter()
                .filter(split)
                .map(|axis| format!("`{}`", axis.name()))
                .collect();
            return Err(StrategyError::Unsplit {
                text: text.to_owned(),
                layers: choice.layers(),
                word: format!("{}={}", dim.name(), axes.unwrap_or_default()),
                axis: axis.name(),
                possible: match possible.is_empty() {
                    true => "no axes".to_owned(),
                    false => possible.join(", "),
                },
            });
        }
    }
    Ok(())
}

/// What is said of all layers.
fn axes(text: &str, words: &str) -> Result<Strategy, StrategyError> {
    let mut strategy = Strategy::single();
    let mut seen: Vec<&str> = Vec::new();
    for word in words.split(',').map(str::trim) {
        let form = || StrategyError::Form {
            text: text.to_owned(),
            word: word.to_owned(),
        };
        let (name, value) = word.split_once('=').ok_or_else(form)?;
        let (name, value) = (name.trim(), value.trim());
        if seen.contains(&name) {
            return Err(twice(text, name));
        }
        seen.push(name);
        if let "overlap" | "fuse" = name {
            let choice = switch(value).ok_or_else(form)?;
            match name {
                "overlap" => strategy.overlap = choice,
                _ => strategy.fuse = choice,
            }
            continue;
        }
        if name == "shard" {
            let known = Shard::ALL.into_iter().find(|shard| shard.name() == value);
            strategy.shard = known.ok_or_else(form)?;
            continue;
        }
        let number = || value.parse().ok().filter(|&number: &usize| number > 0);
        if name == "micro" {
            strategy.micro = number().ok_or_else(form)?;
            continue;
        }
        let of_layers = [
            ("halo", "conv1..conv4: halo=grouped"),
            ("recompute", "conv1..pool3: recompute=on"),
        ];
        if let Some((_, example)) = of_layers.into_iter().find(|(key, _)| *key == name) {
            return Err(StrategyError::OfLayers {
                text: text.to_owned(),
                name: name.to_owned(),
                example,
            });
        }
        let axis = Axis::from_name(name).ok_or_else(|| unknown_axis(text, name))?;
        let extent = number().ok_or_else(form)?;
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

/// `conv4..fc2: D=-,F=filter+depth`; nothing where no layer is named.
fn layer_choice(
    text: &str,
    layers: &str,
    words: &str,
) -> Result<Option<LayerChoice>, StrategyError> {
    let (from, to) = layers.split_once("..").unwrap_or((layers, layers));
    if from.is_empty() || from.contains(char::is_whitespace) || to.contains(char::is_whitespace) {
        return Ok(None);
    }
    let mut choice = LayerChoice {
        from: from.to_owned(),
        to: to.to_owned(),
        dims: [None; 6],
        recompute: None,
        halo: None,
    };
    for word in words.split(',').map(str::trim) {
        let form = || StrategyError::LayerForm {
            text: text.to_owned(),
            word: word.to_owned(),
        };
        let (name, value) = word.split_once('=').ok_or_else(form)?;
        let (name, value) = (name.trim(), value.trim());
        if name == "recompute" {
            let is_on = switch(value).ok_or_else(form)?;
            if choice.recompute.replace(is_on).is_some() {
                return Err(twice(text, name));
            }
            continue;
        }
        if name == "halo" {
            let known = [Halo::Own, Halo::Grouped].into_iter();
            let halo = known.into_iter().find(|halo| halo.name() == value);
            if choice.halo.replace(halo.ok_or_else(form)?).is_some() {
                return Err(twice(text, name));
            }
            continue;
        }
        let at = LayerDim::ALL.iter().position(|dim| dim.name() == name);
        let at = at.ok_or_else(form)?;
        if choice.dims[at].is_some() {
            return Err(twice(text, name));
        }
        let mut list = AxisList::NONE;
        for axis in value.split('+').filter(|_| value != "-") {
            let axis = axis.trim();
            let known = Axis::from_name(axis).ok_or_else(|| unknown_axis(text, axis))?;
            if list.has(known) {
                return Err(twice(text, axis));
            }
            list = list.inside(known);
        }
        choice.dims[at] = Some(list);
    }
    Ok(Some(choice))
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn twice(text: &str, name: &str) -> StrategyError {
    StrategyError::Twice {
        text: text.to_owned(),
        name: name.to_owned(),
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
            "data=2,micro=4,shard=gradients",
            "depth=2,filter=2,channel=3; conv4..fc2: D=-,F=filter+depth; fc3: C=-",
            "depth=2; conv2..: N=depth,D=-",
            "data=2; conv1..pool1: recompute=on; conv2: F=data,recompute=off",
            "height=2; conv1..conv4: halo=grouped; conv5..: D=-,halo=own",
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
            "micro=0",
            "shard=all",
            "depth=2;",
            "depth=2; conv1",
            "depth=2; : D=-",
            "depth=2; conv1: D",
            "depth=2; conv1: X=depth",
            "depth=2; conv1: D=deep",
            "depth=2; conv1: D=depth+depth",
            "depth=2; conv1: D=-,D=-",
            "depth=2; conv1: halo=wide",
            "depth=2; conv1: recompute=maybe",
            "depth=2; conv1: recompute=on,recompute=off",
            "depth=2,halo=grouped",
            "depth=2; conv1: D=width",
            "depth=2; conv1: halo=own,halo=own",
            "",
        ] {
            assert!(text.parse::<Strategy>().is_err(), "{text}");
        }
        let error = |text: &str| text.parse::<Strategy>().unwrap_err().to_string();
        assert!(error("recompute=on").contains("; conv1..pool3: recompute=on"));
        let unsplit = error("depth=2,data=2; conv1..: D=depth+width");
        assert!(unsplit.contains("`width`"), "{unsplit}");
        assert!(
            unsplit.contains("possible are `data`, `depth`"),
            "{unsplit}"
        );
        let error = Strategy::hybrid(3, [2, 1, 1])
            .check_ranks(8)
            .unwrap_err()
            .to_string();
        assert!(error.contains("data=4,depth=2"), "{error}");
    }
}
