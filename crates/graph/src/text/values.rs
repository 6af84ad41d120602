//! Keys and values of one line of a model's text.

use super::{TextError, synonym};
use crate::infer::MAX_NUMBER;
use crate::keyword::Keyword;
use crate::{
    ClassWeights, DropoutMask, Initialization, Interpolation, PadMode, ParameterRole, PreluSlopes,
};
use partita_space::nearest;

/// Key, value pairs of one line, checked against the keys of its operation.
pub(super) struct Attributes<'a> {
    line: usize,
    keyword: Keyword,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Attributes<'a> {
    /// Takes the pairs of a line.
    pub(super) fn new(
        line: usize,
        keyword: Keyword,
        pairs: Vec<(&'a str, &'a str)>,
    ) -> Result<Self, TextError> {
        let possible = keyword.keys();
        for (i, &(key, _)) in pairs.iter().enumerate() {
            if !possible.contains(&key) {
                return Err(TextError::UnknownKey {
                    line,
                    operation: keyword.name(),
                    asked: key.to_owned(),
                    possible: synonym::possible(keyword),
                    nearest: synonym::key(keyword, key),
                });
            }
            if let Some((_, first)) = pairs[..i].iter().find(|(other, _)| *other == key) {
                return Err(TextError::DuplicateKey {
                    line,
                    key: key.to_owned(),
                    nearest: (*first).to_owned(),
                });
            }
        }
        Ok(Self {
            line,
            keyword,
            pairs,
        })
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        let found = self.pairs.iter().find(|(other, _)| *other == key);
        found.map(|&(_, value)| value)
    }

    fn needed(&self, key: &'static str, kind: Kind) -> Result<&'a str, TextError> {
        self.get(key).ok_or_else(|| TextError::MissingKey {
            line: self.line,
            operation: self.keyword.name(),
            key,
            possible: kind.possible().to_owned(),
            nearest: kind.example().to_owned(),
        })
    }

    /// A whole number.
    pub(super) fn whole(
        &self,
        key: &'static str,
        default: Option<usize>,
    ) -> Result<usize, TextError> {
        match (self.get(key), default) {
            (None, Some(default)) => Ok(default),
            _ => self.read(key, Kind::Whole, self.needed(key, Kind::Whole)?, |value| {
                value.parse().ok()
            }),
        }
    }

    /// A number.
    pub(super) fn real(&self, key: &'static str) -> Result<f64, TextError> {
        let value = self.needed(key, Kind::Real)?;
        self.read(key, Kind::Real, value, |value| value.parse().ok())
    }

    /// A number, or what it is where none is given.
    pub(super) fn real_or(&self, key: &'static str, default: f64) -> Result<f64, TextError> {
        self.get(key).map_or(Ok(default), |_| self.real(key))
    }

    /// Numbers separated by commas; none where the key is missing.
    pub(super) fn numbers(&self, key: &'static str) -> Result<Vec<f64>, TextError> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        self.read(key, Kind::Numbers, value, |value| {
            let numbers: Result<Vec<f64>, _> = value.split(',').map(str::parse).collect();
            numbers.ok()
        })
    }

    /// Weights of classes: numbers separated by commas, or the word for those that follow from the labels; all 1 where the
    /// key is missing.
    pub(super) fn class_weights(&self, key: &'static str) -> Result<ClassWeights, TextError> {
        match self.get(key) {
            None => Ok(ClassWeights::ONES),
            Some(ClassWeights::INVERSE_FREQUENCY) => Ok(ClassWeights::InverseFrequency(Vec::new())),
            Some(value) => self.read(key, Kind::ClassWeights, value, |value| {
                let numbers: Result<Vec<f64>, _> = value.split(',').map(str::parse).collect();
                numbers.ok().map(ClassWeights::Listed)
            }),
        }
    }

    /// A whole number, perhaps negative, if the key is there.
    pub(super) fn integer(&self, key: &'static str) -> Result<Option<i64>, TextError> {
        let read = |value| self.read(key, Kind::Integer, value, |value| value.parse().ok());
        self.get(key).map(read).transpose()
    }

    /// `true` or `false`, or what it is where neither is given.
    pub(super) fn flag_or(&self, key: &'static str, default: bool) -> Result<bool, TextError> {
        self.get(key).map_or(Ok(default), |value| {
            self.read(key, Kind::Flag, value, |value| value.parse().ok())
        })
    }

    /// `true`, `false`, or the name of a shared parameter, which contains a dot; true where none is given.
    pub(super) fn flag_or_name(
        &self,
        key: &'static str,
    ) -> Result<(bool, Option<&'a str>), TextError> {
        let Some(value) = self.get(key) else {
            return Ok((true, None));
        };
        if value.contains('.') {
            return Ok((true, Some(value)));
        }
        let flag = self.read(key, Kind::FlagOrName, value, |value| value.parse().ok())?;
        Ok((flag, None))
    }

    /// What the padding of a convolution holds; by default zeros.
    pub(super) fn padding(&self) -> Result<Padding, TextError> {
        let value = self.get("padding").unwrap_or("zero");
        self.refuse_width(value, Kind::Padding)?;
        self.read("padding", Kind::Padding, value, |value| match value {
            "zero" => Some(Padding::Zero),
            "periodic" => Some(Padding::Periodic),
            "replicate" => Some(Padding::Copies(PadMode::Replicate)),
            "reflect" => Some(Padding::Copies(PadMode::Reflect)),
            _ => None,
        })
    }

    /// The error that `padding` says how wide it is, which `pad` does.
    fn refuse_width(&self, value: &str, kind: Kind) -> Result<(), TextError> {
        let kernel = self.get("kernel").unwrap_or("1");
        let half =
            |taps: &str| (taps.parse::<usize>().unwrap_or(1).saturating_sub(1) / 2).to_string();
        let width = match value {
            "same" => kernel.split('x').map(half).collect::<Vec<_>>().join("x"),
            "valid" => "0".to_owned(),
            _ => match synonym::dims(value) {
                Some(widths) => widths,
                None if value.starts_with(|first: char| first.is_ascii_digit()) => value.to_owned(),
                None => return Ok(()),
            },
        };
        Err(TextError::OtherKey {
            line: self.line,
            key: "padding",
            asked: value.to_owned(),
            possible: kind.possible().to_owned(),
            nearest: format!("pad={width}"),
        })
    }

    /// The error that a number stands where the name of a parameter to share does.
    pub(super) fn refuse_number(
        &self,
        role: ParameterRole,
        initial: &'static str,
    ) -> Result<(), TextError> {
        let key = role.name();
        let Some(number) = self.get(key).filter(|value| value.parse::<f64>().is_ok()) else {
            return Ok(());
        };
        let constant = match role {
            ParameterRole::Weight => "constant:",
            ParameterRole::Bias
            | ParameterRole::Gamma
            | ParameterRole::Beta
            | ParameterRole::Slope
            | ParameterRole::RunningMean
            | ParameterRole::RunningVariance => "",
        };
        Err(TextError::OtherKey {
            line: self.line,
            key,
            asked: number.to_owned(),
            possible: format!("the name of a parameter to share, LAYER.{key}"),
            nearest: format!("{initial}={constant}{number}"),
        })
    }

    /// What a padding operation pads with; by default zeros.
    pub(super) fn pad_mode(&self) -> Result<PadMode, TextError> {
        let value = self.get("padding").unwrap_or("zero");
        self.refuse_width(value, Kind::PadMode)?;
        self.read("padding", Kind::PadMode, value, |value| {
            PadMode::ALL.into_iter().find(|mode| mode.name() == value)
        })
    }

    /// What a dropout draws a number for; by default each element.
    pub(super) fn dropout_mask(&self) -> Result<DropoutMask, TextError> {
        let value = self.get("mask").unwrap_or("element");
        self.read("mask", Kind::DropoutMask, value, |value| {
            DropoutMask::ALL
                .into_iter()
                .find(|mask| mask.name() == value)
        })
    }

    /// Interpolation of an upsampling; by default it repeats values.
    pub(super) fn interpolation(&self) -> Result<Interpolation, TextError> {
        let value = self.get("mode").unwrap_or("nearest");
        let linear = self.read("mode", Kind::Interpolation, value, |value| match value {
            "nearest" => Some(false),
            "linear" => Some(true),
            _ => None,
        })?;
        let align_corners = self.flag_or("align_corners", false)?;
        match (linear, align_corners) {
            (true, align_corners) => Ok(Interpolation::Linear { align_corners }),
            (false, false) => Ok(Interpolation::Nearest),
            (false, true) => Err(TextError::Value {
                line: self.line,
                key: "align_corners",
                asked: "true".to_owned(),
                possible: "false, unless mode=linear".to_owned(),
                nearest: "false".to_owned(),
            }),
        }
    }

    /// How many slopes a PReLU has.
    pub(super) fn slopes(&self) -> Result<PreluSlopes, TextError> {
        let value = self.get("slopes").unwrap_or(PreluSlopes::One.name());
        self.read("slopes", Kind::Slopes, value, |value| {
            let mut all = PreluSlopes::ALL.into_iter();
            all.find(|slopes| slopes.name() == value)
        })
    }

    /// Whether a bias of attention scores is relative; none where there is none.
    pub(super) fn score_bias(&self) -> Result<Option<bool>, TextError> {
        let read = |value| {
            self.read("bias", Kind::ScoreBias, value, |value| match value {
                "pairs" => Some(false),
                "relative" => Some(true),
                _ => None,
            })
        };
        self.get("bias").map(read).transpose()
    }

    /// `NUMBERxNUMBER..`, as many as there are; 1 to 3 of them.
    pub(super) fn extent(&self, key: &'static str) -> Result<Vec<usize>, TextError> {
        let value = self.needed(key, Kind::Extent)?;
        self.read(key, Kind::Extent, value, |value| {
            let numbers: Result<Vec<usize>, _> = value.split('x').map(str::parse).collect();
            numbers.ok()
        })
    }

    /// A whole number per dim of a model with `rank` dims; dims that it lacks have 1.
    pub(super) fn dims(
        &self,
        key: &'static str,
        rank: usize,
        default: Option<usize>,
    ) -> Result<[usize; 3], TextError> {
        let value = match (self.get(key), default) {
            (None, Some(default)) => return Ok(spread(&[default], rank, 1)),
            _ => self.needed(key, Kind::Dims)?,
        };
        let words = self.per_dim(key, value, rank, Kind::Dims)?;
        let mut numbers = Vec::with_capacity(words.len());
        for word in words {
            numbers.push(self.read(key, Kind::Dims, word, |word| word.parse().ok())?);
        }
        Ok(spread(&numbers, rank, 1))
    }

    /// Outputs more per dim, 0 unless given; dims that the model lacks have none.
    pub(super) fn extras(&self, key: &'static str, rank: usize) -> Result<[usize; 3], TextError> {
        let value = self.get(key).unwrap_or("0");
        let mut numbers = Vec::new();
        for word in self.per_dim(key, value, rank, Kind::Extras)? {
            numbers.push(self.read(key, Kind::Extras, word, |word| word.parse().ok())?);
        }
        Ok(spread(&numbers, rank, 0))
    }

    /// Low and high padding per dim; dims that the model lacks have none.
    pub(super) fn pads(
        &self,
        key: &'static str,
        rank: usize,
    ) -> Result<[(usize, usize); 3], TextError> {
        let value = self.get(key).unwrap_or("0");
        let sides = |word: &str| match word.split_once(':') {
            Some((low, high)) => Some((low.parse().ok()?, high.parse().ok()?)),
            None => word.parse().ok().map(|both| (both, both)),
        };
        let mut pads = Vec::new();
        for word in self.per_dim(key, value, rank, Kind::Pads)? {
            pads.push(self.read(key, Kind::Pads, word, sides)?);
        }
        Ok(spread(&pads, rank, (0, 0)))
    }

    /// How a parameter starts, when the line says so. `bare` allows a number for a constant.
    pub(super) fn initialization(
        &self,
        key: &'static str,
        bare: bool,
    ) -> Result<Option<Initialization>, TextError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let constant = |number: &str| number.parse().ok().map(Initialization::Constant);
        let kind = if bare {
            Kind::Constant
        } else {
            Kind::Initialization
        };
        self.read(key, kind, value, |value| {
            match value.strip_prefix("constant:") {
                Some(number) => constant(number),
                None if value == "glorot_uniform" => Some(Initialization::GlorotUniform),
                None if value == "he_normal" => Some(Initialization::HeNormal),
                None if value == "he_normal_fan_out" => Some(Initialization::HeNormalFanOut),
                None => drawn(value).or_else(|| bare.then(|| constant(value)).flatten()),
            }
        })
        .map(Some)
    }

    /// The error that a line both shares a parameter and says how it starts.
    pub(super) fn refuse_with_shared(
        &self,
        key: &'static str,
        shared: &str,
    ) -> Result<(), TextError> {
        self.refuse_key(key, || format!("`{shared}` starts as its own layer says"))
    }

    /// The error that a line has a key, for this reason.
    pub(super) fn refuse_key(
        &self,
        key: &'static str,
        why: impl FnOnce() -> String,
    ) -> Result<(), TextError> {
        let Some(value) = self.get(key) else {
            return Ok(());
        };
        Err(TextError::Value {
            line: self.line,
            key,
            asked: value.to_owned(),
            possible: format!("to leave it out, because {}", why()),
            nearest: "(left out)".to_owned(),
        })
    }

    /// Whether a norm has no parameter of a role, by `affine=false` or `bias=false`.
    ///
    /// Errors: a value that is neither `true` nor `false`; a key that says where the parameter comes from.
    pub(super) fn constant(&self, role: ParameterRole) -> Result<bool, TextError> {
        let keys: &[&'static str] = match (self.keyword, role) {
            (Keyword::LayerNorm, ParameterRole::Beta) => &["affine", "bias"],
            (_, ParameterRole::Gamma | ParameterRole::Beta) => &["affine"],
            _ => &[],
        };
        for &key in keys {
            if !self.flag_or(key, true)? {
                for other in [role.name(), initialization_key(role)] {
                    self.refuse_key(other, || {
                        format!("`{key}=false` means that there is no {}", role.name())
                    })?;
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Words per dim: one for all or `rank` of them.
    fn per_dim(
        &self,
        key: &'static str,
        value: &'a str,
        rank: usize,
        kind: Kind,
    ) -> Result<Vec<&'a str>, TextError> {
        let words: Vec<&str> = value.split('x').collect();
        if words.len() == 1 || words.len() == rank {
            return Ok(words);
        }
        let last = words[words.len() - 1];
        let fitted: Vec<&str> = (0..rank).map(|i| *words.get(i).unwrap_or(&last)).collect();
        Err(TextError::Value {
            line: self.line,
            key,
            asked: value.to_owned(),
            possible: format!("{}, for {rank} dim(s)", kind.possible()),
            nearest: fitted.join("x"),
        })
    }

    fn read<T>(
        &self,
        key: &'static str,
        kind: Kind,
        value: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, TextError> {
        parse(value).ok_or_else(|| TextError::Value {
            line: self.line,
            key,
            asked: value.to_owned(),
            possible: kind.possible().to_owned(),
            nearest: kind.nearest(value),
        })
    }
}

/// What the padding of a convolution holds.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Padding {
    /// Zeros.
    Zero,
    /// The inputs of the opposite side.
    Periodic,
    /// Copies of inputs near the border.
    Copies(PadMode),
}

/// Kinds of values.
#[derive(Clone, Copy)]
enum Kind {
    Whole,
    Integer,
    Real,
    Numbers,
    ClassWeights,
    Flag,
    FlagOrName,
    Padding,
    PadMode,
    Interpolation,
    DropoutMask,
    Slopes,
    ScoreBias,
    Extent,
    Dims,
    Pads,
    Extras,
    Initialization,
    Constant,
}

impl Kind {
    fn possible(self) -> &'static str {
        match self {
            Self::Whole => "a whole number",
            Self::Integer => "a whole number, perhaps negative",
            Self::Real => "a number",
            Self::Numbers => {
                "numbers separated by commas, as in 0.2,1,3; `inverse_frequency` is of losses of classes"
            }
            Self::ClassWeights => {
                "numbers separated by commas, as in 0.2,1,3, or inverse_frequency"
            }
            Self::Flag => "true or false",
            Self::FlagOrName => "true, false or the name of a bias to share, LAYER.bias",
            Self::Padding => "zero, periodic, replicate or reflect",
            Self::PadMode => "zero, replicate or reflect",
            Self::Interpolation => "nearest or linear",
            Self::DropoutMask => "element, channel or sample",
            Self::Slopes => "one or channel",
            Self::ScoreBias => "pairs or relative",
            Self::Extent => "whole numbers W, HxW or DxHxW",
            Self::Dims => "a whole number, or one per dim as in 3x3x3",
            Self::Pads => "a whole number, LOW:HIGH, or one of these per dim as in 1:2x0x1",
            Self::Extras => "a whole number, or one per dim as in 0x1x1",
            Self::Initialization => {
                "glorot_uniform, he_normal, he_normal_fan_out, normal:DEVIATION, uniform:LIMIT or constant:NUMBER"
            }
            Self::Constant => "a number, normal:DEVIATION or uniform:LIMIT",
        }
    }

    /// A valid value.
    fn example(self) -> &'static str {
        match self {
            Self::Whole | Self::Dims => "1",
            Self::Integer => "255",
            Self::Numbers | Self::ClassWeights => "1,1",
            Self::Real | Self::Pads | Self::Extras | Self::Constant => "0",
            Self::Flag | Self::FlagOrName => "false",
            Self::Padding | Self::PadMode => "zero",
            Self::Interpolation => "nearest",
            Self::DropoutMask => "element",
            Self::Slopes => "one",
            Self::ScoreBias => "relative",
            Self::Extent => "32x32x32",
            Self::Initialization => "glorot_uniform",
        }
    }

    /// The valid value of the same meaning as a word of other frameworks.
    fn synonym(self, value: &str) -> Option<String> {
        let found = match self {
            Self::Padding => synonym::padding(value),
            Self::PadMode => synonym::padding(value).filter(|&word| word != "periodic"),
            Self::Initialization => synonym::initialization(value),
            Self::Constant => {
                let start = synonym::initialization(value);
                start
                    .map(|start| start.strip_prefix("constant:").unwrap_or(start))
                    .filter(|start| !start.starts_with(['h', 'g']))
            }
            Self::Dims | Self::Extent | Self::Extras | Self::Pads => return synonym::dims(value),
            Self::Interpolation if value.contains("linear") => Some("linear"),
            Self::Whole
            | Self::Integer
            | Self::Real
            | Self::Numbers
            | Self::ClassWeights
            | Self::Flag
            | Self::FlagOrName
            | Self::Interpolation
            | Self::DropoutMask
            | Self::Slopes
            | Self::ScoreBias => None,
        };
        found.map(str::to_owned)
    }

    /// The valid value nearest to an invalid one.
    fn nearest(self, value: &str) -> String {
        if let Some(meant) = self.synonym(value) {
            return meant;
        }
        let words: &[&str] = match self {
            Self::ClassWeights if value.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                &[ClassWeights::INVERSE_FREQUENCY]
            }
            Self::Flag | Self::FlagOrName => &["false", "true"],
            Self::Padding => &["zero", "periodic", "replicate", "reflect"],
            Self::PadMode => &["zero", "replicate", "reflect"],
            Self::Interpolation => &["nearest", "linear"],
            Self::DropoutMask => &["element", "channel", "sample"],
            Self::Slopes => &["one", "channel"],
            Self::ScoreBias => &["pairs", "relative"],
            Self::Initialization => &[
                "glorot_uniform",
                "he_normal",
                "he_normal_fan_out",
                "normal:0.01",
                "uniform:0.01",
                "constant:0",
            ],
            Self::Whole | Self::Dims | Self::Pads | Self::Extras => match value.parse::<f64>() {
                Ok(number) => {
                    let from_zero = matches!(self, Self::Pads | Self::Extras);
                    let least = if from_zero { 0.0 } else { 1.0 };
                    let nearest = number.round().max(least).min(MAX_NUMBER as f64);
                    return (nearest as usize).to_string();
                }
                Err(_) => &[],
            },
            Self::Real
            | Self::Extent
            | Self::Constant
            | Self::Integer
            | Self::Numbers
            | Self::ClassWeights => &[],
        };
        nearest(value, words.iter().copied())
            .unwrap_or(self.example())
            .to_owned()
    }
}

/// `normal:DEVIATION` or `uniform:LIMIT`.
fn drawn(value: &str) -> Option<Initialization> {
    let (kind, width) = value.split_once(':')?;
    let width = width.parse().ok()?;
    match kind {
        "normal" => Some(Initialization::Normal(width)),
        "uniform" => Some(Initialization::Uniform(width)),
        _ => None,
    }
}

/// One value for all or one each, at the last `rank` of three dims.
fn spread<T: Copy>(values: &[T], rank: usize, missing: T) -> [T; 3] {
    std::array::from_fn(|i| match (i + rank).checked_sub(3) {
        Some(dim) => *values.get(dim).unwrap_or(&values[0]),
        None => missing,
    })
}

/// Key of the initialization of a parameter.
pub(super) fn initialization_key(role: ParameterRole) -> &'static str {
    match role {
        ParameterRole::Weight => "init",
        ParameterRole::Bias => "init_bias",
        ParameterRole::Gamma => "init_gamma",
        ParameterRole::Beta => "init_beta",
        ParameterRole::Slope => "init_slope",
        ParameterRole::RunningMean => "init_running_mean",
        ParameterRole::RunningVariance => "init_running_variance",
    }
}

/// The shortest decimal that reads back as the same number.
pub(super) fn real(value: f64) -> String {
    format!("{value:?}")
}
