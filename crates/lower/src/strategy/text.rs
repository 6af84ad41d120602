//! The text form of a strategy.

use super::values::{BUCKET_MAX, unknown_value, whole_size};
use super::workspace::{TOTAL, WORKSPACE, limit};
use super::{
    BatchNormStatistics, Branches, Halo, LayerChoice, LayerDim, RANKS_MAX, Recompute, Shard,
    StageChoice, Strategy, StrategyError, WorkspaceLimit,
};
use crate::schedule::{CHUNKS_MAX, REPETITIONS_MAX, Schedule};
use partita_space::limits::MICRO_BATCHES_MAX;
use partita_space::{AXES, Axis, AxisList, AxisSet, Bytes, UnitTable, near, nearest};
use std::fmt;
use std::str::FromStr;

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(","))?;
        self.entries()
            .iter()
            .try_for_each(|entry| write!(f, "; {entry}"))
    }
}

impl Strategy {
    /// Its text before the first semicolon, word by word.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = extents(&self.extents);
        if words.is_empty() && self.stages.is_empty() {
            words.push("data=1".to_owned());
        }
        if !self.overlap {
            words.push("overlap=off".to_owned());
        }
        if !self.fuse {
            words.push("fuse=off".to_owned());
        }
        if self.batch_norm != BatchNormStatistics::default() {
            words.push(format!("batch_norm={}", self.batch_norm.name()));
        }
        if self.bucket > Bytes(0) {
            words.push(format!("bucket={}", whole_size(self.bucket)));
        }
        if self.workspace != WorkspaceLimit::default() {
            let name = match self.workspace {
                WorkspaceLimit::Total(_) => TOTAL,
                WorkspaceLimit::Live | WorkspaceLimit::Off | WorkspaceLimit::Kernel(_) => WORKSPACE,
            };
            words.push(format!("{name}={}", self.workspace));
        }
        if self.micro > 1 {
            words.push(format!("micro={}", self.micro));
        }
        if self.shard != Shard::Off {
            words.push(format!("shard={}", self.shard.name()));
        }
        if !self.stages.is_empty() {
            let stages: Vec<String> = self.stages.iter().map(StageChoice::to_string).collect();
            // A list of hundreds would be hard to read.
            words.push(
                if stages.len() > 16 && stages.iter().all(|stage| stage == "1") {
                    format!("stages={}", stages.len())
                } else {
                    format!("stages=[{}]", stages.join("|"))
                },
            );
            words.push(format!("schedule={}", self.schedule));
        }
        words
    }

    /// What it sets for layers, as after a semicolon.
    pub(crate) fn entries(&self) -> Vec<String> {
        let split = self.named_axes();
        let entry = |choice: &LayerChoice| {
            let mut choice = choice.clone();
            choice.dims = choice.dims.map(|axes| Some(axes?.within(split)));
            choice.to_string()
        };
        self.layers.iter().map(entry).collect()
    }
}

/// Text of the axes of extent above 1.
fn extents(extents: &[usize; 7]) -> Vec<String> {
    AXES.into_iter()
        .zip(extents)
        .filter(|(_, extent)| **extent > 1)
        .map(|(axis, extent)| format!("{}={extent}", axis.name()))
        .collect()
}

impl fmt::Display for StageChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = |(from, to): &(String, String)| {
            if from == to && !from.is_empty() {
                from.clone()
            } else {
                format!("{from}..{to}")
            }
        };
        if !self.layers.is_empty() {
            let ranges: Vec<String> = self.layers.iter().map(range).collect();
            write!(f, "{}: ", ranges.join("+"))?;
        }
        let words = extents(&self.extents);
        if words.is_empty() {
            f.write_str("1")
        } else {
            f.write_str(&words.join(","))
        }
    }
}

impl fmt::Display for LayerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.layers())?;
        let dims = LayerDim::ALL.into_iter().zip(self.dims);
        let words = dims.filter_map(|(dim, axes)| {
            let axes = axes?;
            Some(if axes.is_empty() {
                format!("{}=-", dim.name())
            } else {
                format!("{}={axes}", dim.name())
            })
        });
        let again = self.recompute;
        let again = again.map(|recompute| format!("recompute={}", recompute.name()));
        let halo = self.halo.map(|halo| format!("halo={}", halo.name()));
        let branches = self.branches.as_ref().map(|branches| match branches {
            Branches::Off => "branches=off".to_owned(),
            Branches::Groups(groups) => format!("branches={groups}"),
            Branches::Sizes(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                format!("branches=[{}]", sizes.join("|"))
            }
        });
        let chunks = self.chunks.map(|chunks| format!("chunks={chunks}"));
        let words = words.chain(again).chain(halo).chain(chunks).chain(branches);
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Strategy {
    type Err = StrategyError;

    fn from_str(text: &str) -> Result<Self, StrategyError> {
        let mut strategy = Strategy::single();
        let mut reader = Reader {
            text,
            seen: Vec::new(),
        };
        for (at, segment) in text.split(';').enumerate() {
            let form = || StrategyError::Form {
                text: text.to_owned(),
                word: segment.trim().to_owned(),
                nearest: meant_extent(segment.trim()),
            };
            match outside(segment, ':').as_slice() {
                [words] => {
                    // Settings of all layers may follow in segments of its own.
                    for word in outside(words, ',') {
                        reader.word(&mut strategy, word.trim())?;
                    }
                }
                [layers, words] if at > 0 => {
                    let choice = layer_choice(text, layers.trim(), words)?;
                    strategy.layers.push(choice.ok_or_else(form)?);
                }
                _ => return Err(form()),
            }
        }
        if strategy.stages.is_empty() && reader.seen.iter().any(|name| name == "schedule") {
            return Err(StrategyError::NoStages {
                text: text.to_owned(),
                schedule: strategy.schedule.to_string(),
            });
        }
        let product = |extents: &[usize; 7]| {
            let mut all = extents.iter();
            all.try_fold(1usize, |all, &one| all.checked_mul(one))
        };
        let in_stages = strategy.stages.iter().try_fold(0usize, |sum, stage| {
            sum.checked_add(product(&stage.extents)?)
        });
        let ranks = in_stages
            .zip(product(&strategy.extents))
            .and_then(|(in_stages, mesh)| in_stages.max(1).checked_mul(mesh));
        if ranks.is_none_or(|ranks| ranks > RANKS_MAX) {
            return Err(StrategyError::TooMany {
                text: text.to_owned(),
                most: RANKS_MAX,
            });
        }
        if !strategy.stages.is_empty() {
            strategy.check_outside_stages()?;
        }
        let named = strategy.named_axes();
        let mut choices = strategy.layers.iter();
        choices.try_for_each(|choice| check_split(&text, choice, named))?;
        Ok(strategy)
    }
}

/// Splits a text at a sign, except within brackets.
fn outside(text: &str, sign: char) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ if letter == sign && depth == 0 => {
                parts.push(&text[start..at]);
                start = at + letter.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Checks that axes named for some layers have an extent above 1; otherwise a typo would undo a split.
pub(crate) fn check_split(
    text: &dyn fmt::Display,
    choice: &LayerChoice,
    split: AxisSet,
) -> Result<(), StrategyError> {
    for (dim, axes) in LayerDim::ALL.into_iter().zip(choice.dims) {
        let mut named = axes.into_iter().flat_map(AxisList::iter);
        let Some(axis) = named.find(|&axis| !split.has(axis)) else {
            continue;
        };
        let possible: Vec<String> = AXES
            .into_iter()
            .filter(|&axis| split.has(axis))
            .map(|axis| format!("`{}`", axis.name()))
            .collect();
        return Err(StrategyError::Unsplit {
            text: text.to_string(),
            layers: choice.layers(),
            word: format!("{}={}", dim.name(), axes.unwrap_or_default()),
            axis: axis.name(),
            possible: if possible.is_empty() {
                "no axes".to_owned()
            } else {
                possible.join(", ")
            },
        });
    }
    Ok(())
}

/// Parser of the settings of all layers.
struct Reader<'t> {
    text: &'t str,
    seen: Vec<String>,
}

impl Reader<'_> {
    fn word(&mut self, strategy: &mut Strategy, word: &str) -> Result<(), StrategyError> {
        let text = self.text;
        let form = || StrategyError::Form {
            text: text.to_owned(),
            word: word.to_owned(),
            nearest: meant_extent(word),
        };
        let (name, value) = word.split_once('=').ok_or_else(form)?;
        let (name, value) = (name.trim(), value.trim());
        if self.seen.iter().any(|seen| seen == name) {
            return Err(twice(text, name));
        }
        self.seen.push(name.to_owned());
        match name {
            "overlap" => strategy.overlap = switch(text, name, value)?,
            "fuse" => strategy.fuse = switch(text, name, value)?,
            "shard" => {
                strategy.shard = one_of(text, (name, value), &Shard::ALL, Shard::name)?;
            }
            "batch_norm" => {
                let (all, word) = (&BatchNormStatistics::ALL, BatchNormStatistics::name);
                strategy.batch_norm = one_of(text, (name, value), all, word)?;
            }
            "bucket" => strategy.bucket = size(text, name, value)?,
            WORKSPACE | TOTAL => {
                let mut both = self.seen.iter().map(String::as_str);
                if both.any(|seen| [WORKSPACE, TOTAL].contains(&seen) && seen != name) {
                    let possible = format!("one of `{WORKSPACE}` and `{TOTAL}`, not both");
                    let other = if name == TOTAL { WORKSPACE } else { TOTAL };
                    return Err(StrategyError::Value {
                        text: text.to_owned(),
                        word: format!("{other}={},{name}={value}", strategy.workspace),
                        possible,
                        nearest: format!("{name}={value}"),
                    });
                }
                strategy.workspace = limit(text, name, value)?;
            }
            "micro" => strategy.micro = counted(text, name, value, MICRO_BATCHES_MAX)?,
            "schedule" => {
                let unknown = || unknown_schedule(text, value);
                strategy.schedule = Schedule::parse(value).ok_or_else(unknown)?;
            }
            "stages" => strategy.stages = stages(text, value)?,
            _ => extent(text, &mut strategy.extents, word)?,
        }
        Ok(())
    }
}

/// A size, or `off`.
fn size(text: &str, name: &str, value: &str) -> Result<Bytes, StrategyError> {
    if value == "off" {
        return Ok(Bytes(0));
    }
    let given = UnitTable::BYTES.parse(value);
    let whole =
        given.filter(|bytes| bytes.fract() == 0.0 && (1.0..=BUCKET_MAX.0 as f64).contains(bytes));
    whole.map(|bytes| Bytes(bytes as u64)).ok_or_else(|| {
        let possible = format!("a size from 1B to {}, or off", whole_size(BUCKET_MAX));
        let near = match given {
            Some(bytes) if bytes >= 1.0 => {
                whole_size(Bytes((bytes.round() as u64).min(BUCKET_MAX.0)))
            }
            Some(_) => "off".to_owned(),
            // Without unit.
            None if value.parse() == Ok(0.0) => "off".to_owned(),
            None => "25MiB".to_owned(),
        };
        unknown_value(text, (name, value), &possible, near)
    })
}

/// A number from 1 to `most`.
fn counted(text: &str, name: &str, value: &str, most: usize) -> Result<usize, StrategyError> {
    number(value)
        .filter(|&number| number <= most)
        .ok_or_else(|| {
            let meant = meant(value);
            let possible = if meant >= most {
                format!("a whole number from 1 to {most}")
            } else {
                "a whole number, at least 1".to_owned()
            };
            let mut words = value.split_whitespace().skip(1).peekable();
            let are_more = words.peek().is_some() && words.clone().all(|word| word.contains('='));
            // Blanks in place of commas.
            let more = if are_more {
                words.map(|word| format!(",{word}")).collect()
            } else {
                String::new()
            };
            let nearest = format!("{}{more}", meant.min(most));
            unknown_value(text, (name, value), &possible, nearest)
        })
}

/// The given number rounded down, or that of the digits before the first blank, without sign; at least 1.
fn meant(value: &str) -> usize {
    let word = value.split_whitespace().next().unwrap_or_default();
    let digits = || -> String { word.chars().filter(char::is_ascii_digit).collect() };
    let given = value.parse().or_else(|_| digits().parse());
    // The cast saturates, and maps NaN to 0.
    (given.map_or(1.0, f64::abs) as usize).max(1)
}

/// One of some words.
fn one_of<T: Copy>(
    text: &str,
    (name, value): (&str, &str),
    all: &[T],
    word: fn(T) -> &'static str,
) -> Result<T, StrategyError> {
    if let Some(known) = all.iter().find(|one| word(**one) == value) {
        return Ok(*known);
    }
    let words: Vec<&str> = all.iter().map(|one| word(*one)).collect();
    let possible = format!("one of {}", words.join(", "));
    let close = nearest(value, words).unwrap_or_default();
    Err(unknown_value(text, (name, value), &possible, close))
}

fn number(value: &str) -> Option<usize> {
    value.parse().ok().filter(|&number: &usize| number > 0)
}

/// The extent of an axis.
fn extent(text: &str, extents: &mut [usize; 7], word: &str) -> Result<(), StrategyError> {
    let form = || StrategyError::Form {
        text: text.to_owned(),
        word: word.to_owned(),
        nearest: meant_extent(word),
    };
    let (name, value) = word.split_once('=').ok_or_else(form)?;
    let (name, value) = (name.trim(), value.trim());
    let of_layers = [
        ("halo", "conv1..conv4: halo=grouped"),
        ("recompute", "conv1..pool3: recompute=on"),
        ("chunks", "conv1..pool1: chunks=8"),
    ];
    if let Some((_, example)) = of_layers.into_iter().find(|(key, _)| *key == name) {
        return Err(StrategyError::OfLayers {
            text: text.to_owned(),
            name: name.to_owned(),
            example,
            nearest: moved_behind(text, word).filter(|_| name != "chunks"),
        });
    }
    let axis = Axis::from_name(name).ok_or_else(|| unknown_axis(text, name))?;
    extents[axis.index()] = counted(text, name, value, RANKS_MAX)?;
    Ok(())
}

/// The extent of an axis that was probably meant by `data:2`, `data 2`, `data2` or `dp2`.
fn meant_extent(word: &str) -> Option<String> {
    let name = word.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let number = &word[name.len()..];
    let name = name.trim_end_matches(|letter: char| !letter.is_alphanumeric());
    let known = AXES.into_iter().map(Axis::name);
    let axis = near(name, known).or_else(|| other_name(name))?;
    let is_extent = number.parse().is_ok_and(|number: usize| number > 0);
    is_extent.then(|| format!("{axis}={number}"))
}

/// The axis that has another name elsewhere: the letter of a dim, or the kind of parallelism.
fn other_name(name: &str) -> Option<&'static str> {
    let axis = match name.to_lowercase().as_str() {
        "n" | "b" | "dp" | "ddp" | "batch" | "sample" | "samples" | "replicas" => Axis::Data,
        "d" | "z" => Axis::Depth,
        "h" | "y" => Axis::Height,
        "w" | "x" => Axis::Width,
        "f" | "tp" | "model" | "tensor" | "filters" => Axis::Filter,
        "c" | "channels" => Axis::Channel,
        _ => return None,
    };
    Some(axis.name())
}

/// `[depth=2,height=2|..pool2: depth=2|1]`, or a number of stages of one rank.
fn stages(text: &str, value: &str) -> Result<Vec<StageChoice>, StrategyError> {
    let form = |word: &str| StrategyError::StagesForm {
        text: text.to_owned(),
        word: word.trim().to_owned(),
    };
    let single = StageChoice {
        layers: Vec::new(),
        extents: [1; 7],
    };
    if value.parse::<f64>().is_ok() {
        return Ok(vec![single; counted(text, "stages", value, RANKS_MAX)?]);
    }
    let inner = value
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let list = inner.ok_or_else(|| form(value))?.split('|');
    let stage = |one: &str| {
        let mut stage = single.clone();
        let words = match one.split_once(':') {
            None => one,
            Some((layers, words)) => {
                for layers in layers.split('+').map(str::trim) {
                    if layers.contains(char::is_whitespace)
                        || layers.is_empty()
                        || !is_balanced(layers)
                    {
                        return Err(form(one));
                    }
                    let (from, to) = layers.split_once("..").unwrap_or((layers, layers));
                    stage.layers.push((from.to_owned(), to.to_owned()));
                }
                words
            }
        };
        if words.trim() == "1" {
            return Ok(stage);
        }
        let mut seen = Vec::new();
        for word in words.split(',').map(str::trim) {
            let (name, _) = word.split_once('=').ok_or_else(|| form(one))?;
            if seen.contains(&name.trim()) {
                return Err(twice(text, name.trim()));
            }
            seen.push(name.trim());
            extent(text, &mut stage.extents, word)?;
        }
        Ok(stage)
    };
    list.map(stage).collect()
}

/// Whether every bracket is closed, as those are by which a list of stages is found in a strategy.
fn is_balanced(text: &str) -> bool {
    let step = |depth: u32, letter: char| match letter {
        '[' => Some(depth + 1),
        ']' => depth.checked_sub(1),
        _ => Some(depth),
    };
    text.chars().try_fold(0, step) == Some(0)
}

/// `conv4..fc2: D=-,F=filter+depth`; nothing where no layer is named.
fn layer_choice(
    text: &str,
    layers: &str,
    words: &str,
) -> Result<Option<LayerChoice>, StrategyError> {
    let (from, to) = layers.split_once("..").unwrap_or((layers, layers));
    if layers.is_empty() || from.contains(char::is_whitespace) || to.contains(char::is_whitespace) {
        return Ok(None);
    }
    let mut choice = LayerChoice {
        from: from.to_owned(),
        to: to.to_owned(),
        ..LayerChoice::default()
    };
    for word in outside(words, ',').into_iter().map(str::trim) {
        let form = || StrategyError::LayerForm {
            text: text.to_owned(),
            word: word.to_owned(),
            nearest: moved_before(text, word).or_else(|| meant_setting(word)),
        };
        let (name, value) = word.split_once('=').ok_or_else(form)?;
        let (name, value) = (name.trim(), value.trim());
        if name == "recompute" {
            let recompute = recompute(text, value)?;
            if choice.recompute.replace(recompute).is_some() {
                return Err(twice(text, name));
            }
            continue;
        }
        if name == "halo" {
            let all = [Halo::Own, Halo::Grouped];
            let halo = one_of(text, (name, value), &all, Halo::name)?;
            if choice.halo.replace(halo).is_some() {
                return Err(twice(text, name));
            }
            continue;
        }
        if name == "chunks" {
            let chunks = counted(text, name, value, MICRO_BATCHES_MAX)?;
            if choice.chunks.replace(chunks).is_some() {
                return Err(twice(text, name));
            }
            continue;
        }
        if name == "branches" {
            let branches = branches(text, value)?.ok_or_else(form)?;
            if choice.branches.replace(branches).is_some() {
                return Err(twice(text, name));
            }
            continue;
        }
        let at = LayerDim::ALL
            .iter()
            .position(|dim| dim.name() == name)
            .ok_or_else(form)?;
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

/// The strategy with a setting of all layers behind the first semicolon, if it is one then.
fn moved_behind(text: &str, word: &str) -> Option<String> {
    let head = text.split(';').next()?;
    let others = outside(head, ',').into_iter().map(str::trim);
    let others: Vec<&str> = others.filter(|other| *other != word).collect();
    let strategy = format!("{}; ..: {word}{}", others.join(","), &text[head.len()..]);
    strategy.parse::<Strategy>().ok()?;
    Some(strategy)
}

/// Settings of a whole strategy.
const OF_THE_WHOLE: [&str; 10] = [
    "overlap",
    "fuse",
    "batch_norm",
    "bucket",
    WORKSPACE,
    TOTAL,
    "micro",
    "shard",
    "stages",
    "schedule",
];

/// The strategy with a setting of the whole before the first semicolon, if it is one then.
fn moved_before(text: &str, word: &str) -> Option<String> {
    let name = word.split('=').next()?.trim();
    OF_THE_WHOLE.contains(&name).then_some(())?;
    let mut parts = text.split(';').map(str::trim);
    let head = format!("{},{word}", parts.next()?);
    let without = |part: &str| -> Option<String> {
        let (layers, words) = part.split_once(':')?;
        let words = outside(words, ',').into_iter().map(str::trim);
        let words: Vec<&str> = words.filter(|other| *other != word).collect();
        (!words.is_empty()).then(|| format!("{layers}: {}", words.join(",")))
    };
    let rest: Vec<String> = parts.filter_map(without).collect();
    let strategy = [vec![head], rest].concat().join("; ");
    strategy.parse::<Strategy>().ok()?;
    Some(strategy)
}

/// The setting of layers that was probably meant by `chunk=2`.
fn meant_setting(word: &str) -> Option<String> {
    let (name, value) = word.split_once('=')?;
    let meant = near(name.trim(), ["recompute", "halo", "chunks", "branches"])?;
    // Otherwise it is the value that cannot be.
    (meant != name.trim()).then(|| format!("{meant}={}", value.trim()))
}

/// `off`, `3` or `[2|1]`; none of anything else.
fn branches(text: &str, value: &str) -> Result<Option<Branches>, StrategyError> {
    if value == "off" {
        return Ok(Some(Branches::Off));
    }
    let ranks = |size: &str| counted(text, "branches", size, RANKS_MAX);
    if number(value).is_some() {
        return ranks(value).map(|groups| Some(Branches::Groups(groups)));
    }
    let inner = value
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let sizes: Vec<&str> = inner
        .into_iter()
        .flat_map(|inner| inner.split('|').map(str::trim))
        .collect();
    if sizes.is_empty() || sizes.iter().any(|size| number(size).is_none()) {
        return Ok(None);
    }
    let sizes: Result<Vec<usize>, StrategyError> = sizes.into_iter().map(ranks).collect();
    sizes.map(|sizes| Some(Branches::Sizes(sizes)))
}

fn recompute(text: &str, value: &str) -> Result<Recompute, StrategyError> {
    let selective = Recompute::Selective.name();
    let found = Recompute::ALL.into_iter().find(|one| one.name() == value);
    found.ok_or_else(|| {
        let close = match near(value, [selective]) {
            Some(close) => close,
            None if is_no(value) => Recompute::Off.name(),
            None => Recompute::On.name(),
        };
        unknown_value(text, ("recompute", value), "on, off or selective", close)
    })
}

/// Whether a value that is no switch means `off`.
fn is_no(value: &str) -> bool {
    ["no", "false", "0", "none", "-"].contains(&value.to_lowercase().as_str())
}

fn switch(text: &str, name: &str, value: &str) -> Result<bool, StrategyError> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(unknown_value(
            text,
            (name, value),
            "on or off",
            if is_no(value) { "off" } else { "on" },
        )),
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
    let pipeline = ["pp", "pipe", "pipeline", "stage"].contains(&name.to_lowercase().as_str());
    let other = || {
        if pipeline {
            Some("stages")
        } else {
            other_name(name)
        }
    };
    let nearest = other()
        .or_else(|| near(name, names.iter().copied().chain(OF_THE_WHOLE)))
        .map(str::to_owned);
    StrategyError::UnknownAxis {
        text: text.to_owned(),
        name: name.to_owned(),
        known: names.join(", "),
        nearest,
    }
}

fn unknown_schedule(text: &str, value: &str) -> StrategyError {
    match value.split_once('*') {
        Some(("gems", times)) => {
            let possible = format!("gems*N with N from 1 to {REPETITIONS_MAX}");
            let nearest = near_gems(text, times);
            return unknown_value(text, ("schedule", value), &possible, nearest);
        }
        Some(("interleaved", _)) => {
            let possible = format!(
                "interleaved*N with N from 2 to {CHUNKS_MAX}, as long as the model has N layers for each stage"
            );
            // How many layers there are is not known here; this takes the fewest.
            return unknown_value(text, ("schedule", value), &possible, "interleaved*2");
        }
        Some(_) | None => {}
    }
    let possible = [
        "sequential",
        "gpipe",
        "1f1b",
        "interleaved*2",
        "zero-bubble",
        "gems",
        "gems*2",
        "chimera",
    ];
    let (name, _) = value.split_once('*').unwrap_or((value, ""));
    let same = possible
        .iter()
        .find(|one| one.split('*').next() == Some(name));
    let nearest = same.copied().or_else(|| near(value, possible));
    StrategyError::UnknownSchedule {
        text: text.to_owned(),
        schedule: value.to_owned(),
        possible: possible.join(", "),
        nearest,
    }
}

/// The repetitions next to those asked for that the micro-batches of the strategy allow; where they are
/// not even, other micro-batches, too.
fn near_gems(text: &str, times: &str) -> String {
    let micro = |word: &str| {
        word.trim()
            .strip_prefix("micro")?
            .trim()
            .strip_prefix('=')?
            .trim()
            .parse()
            .ok()
    };
    let micro: Option<usize> = text.split([',', ';']).find_map(micro);
    let possible =
        micro.filter(|&micro| micro % 2 == 0 && (1..=MICRO_BATCHES_MAX).contains(&micro));
    let (suffix, turns) = possible.map_or((",micro=2", 1), |micro| ("", micro / 2));
    let asked = meant(times);
    let fits = |repetitions: &usize| turns.is_multiple_of(*repetitions);
    let nearest = (1..=turns)
        .filter(fits)
        .min_by_key(|one| one.abs_diff(asked));
    let repetitions = nearest.unwrap_or(1);
    format!("{}{suffix}", Schedule::Gems { repetitions })
}

#[cfg(test)]
mod tests;
