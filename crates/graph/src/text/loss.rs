//! Losses in the text form.

use super::values::{Attributes, real};
use super::{TextError, synonym};
use crate::infer::list;
use crate::keyword::Keyword;
use crate::{ClassLoss, ClassWeights, ElementFunction, ElementLoss, Loss};

/// Reads a loss as on the line of a model, without name and input: `dice_cross_entropy smooth=1`.
///
/// Errors: as [`super::parse`], on line 1; a factor `weight`, as the loss is no auxiliary one.
pub fn parse_loss(text: &str) -> Result<Loss, TextError> {
    let line = 1;
    let mut words = text.split_whitespace();
    let word = words.next().unwrap_or_default();
    let found = Keyword::LOSSES.into_iter();
    let Some(keyword) = found.clone().find(|keyword| keyword.name() == word) else {
        let names: Vec<&str> = found.map(Keyword::name).collect();
        return Err(TextError::UnknownOperation {
            line,
            asked: word.to_owned(),
            possible: list(names.iter().copied()),
            nearest: synonym::operation(word, &names).to_owned(),
        });
    };
    let pairs = words.map(|word| word.split_once('=').unwrap_or((word, "")));
    let pairs: Vec<_> = pairs.collect();
    if pairs.iter().any(|(key, _)| *key == "weight") {
        let possible = keyword.keys().iter().filter(|key| **key != "weight");
        return Err(TextError::UnknownKey {
            line,
            operation: keyword.name(),
            asked: "weight".to_owned(),
            possible: list(possible),
            nearest: "`weights`".to_owned(),
        });
    }
    read(keyword, &Attributes::new(line, keyword, pairs)?)
}

/// The loss of a line with this word.
pub(super) fn read(keyword: Keyword, attributes: &Attributes) -> Result<Loss, TextError> {
    let real = |key, default| attributes.real_or(key, default);
    let flag = |key, default| attributes.flag_or(key, default);
    let ignore = attributes.integer("ignore")?;
    let function = match keyword {
        Keyword::L1 => ElementFunction::Absolute,
        Keyword::Huber => ElementFunction::Huber {
            delta: real("delta", 1.0)?,
        },
        Keyword::SmoothL1 => ElementFunction::SmoothL1 {
            beta: real("beta", 1.0)?,
        },
        Keyword::BceWithLogits => ElementFunction::LogisticEntropy,
        Keyword::SoftmaxCrossEntropy => {
            let smoothing = real("smoothing", 0.0)?;
            let weights = attributes.class_weights("weights")?;
            if weights == ClassWeights::ONES && ignore.is_none() {
                return Ok(Loss::SoftmaxCrossEntropy { smoothing });
            }
            return Ok(Loss::Classes(ClassLoss {
                smoothing,
                weights,
                ignore,
                ..ClassLoss::CROSS_ENTROPY
            }));
        }
        Keyword::Dice | Keyword::DiceCrossEntropy => {
            let dice = ClassLoss::DICE;
            let both = keyword == Keyword::DiceCrossEntropy;
            let own = |key: &'static str| {
                let given = attributes.get(key).map(|_| attributes.class_weights(key));
                given.transpose()
            };
            let weights = attributes.class_weights("weights")?;
            let (entropy, dice_weights) = (own("cross_entropy_weights")?, own("dice_weights")?);
            let dice_weights = match (&entropy, dice_weights) {
                (None, of_dice) => of_dice.filter(|of_dice| *of_dice != weights),
                (Some(entropy), of_dice) => Some(of_dice.unwrap_or_else(|| weights.clone()))
                    .filter(|of_dice| of_dice != entropy),
            };
            return Ok(Loss::Classes(ClassLoss {
                cross_entropy: real("cross_entropy", if both { 1.0 } else { 0.0 })?,
                dice: real("dice", 1.0)?,
                smoothing: real("smoothing", 0.0)?,
                smooth: real("smooth", dice.smooth)?,
                background: flag("background", dice.background)?,
                batch: flag("batch", dice.batch)?,
                weights: entropy.unwrap_or(weights),
                dice_weights,
                ignore,
            }));
        }
        Keyword::Mse if attributes.get("weights").is_none() => return Ok(Loss::MeanSquaredError),
        _ => ElementFunction::Squared,
    };
    let weights = attributes.numbers("weights")?;
    Ok(Loss::Elements(ElementLoss { function, weights }))
}

/// The keys of a loss that differ from their defaults.
pub(super) fn attributes(loss: &Loss) -> Vec<(&'static str, String)> {
    let mut attributes = Vec::new();
    let mut add = |key, value: f64, default: f64| {
        if value != default {
            attributes.push((key, real(value)));
        }
    };
    match loss {
        Loss::MeanSquaredError => {}
        Loss::SoftmaxCrossEntropy { smoothing } => add("smoothing", *smoothing, 0.0),
        Loss::Elements(loss) => match loss.function {
            ElementFunction::Squared
            | ElementFunction::Absolute
            | ElementFunction::LogisticEntropy => {}
            ElementFunction::Huber { delta } => add("delta", delta, 1.0),
            ElementFunction::SmoothL1 { beta } => add("beta", beta, 1.0),
        },
        Loss::Classes(loss) => {
            if loss.dice != 0.0 && loss.cross_entropy != 0.0 {
                add("dice", loss.dice, 1.0);
                add("cross_entropy", loss.cross_entropy, 1.0);
            }
            add("smoothing", loss.smoothing, 0.0);
            add("smooth", loss.smooth, ClassLoss::DICE.smooth);
            for (key, value, default) in [
                ("background", loss.background, true),
                ("batch", loss.batch, false),
            ] {
                if value != default {
                    attributes.push((key, value.to_string()));
                }
            }
        }
    }
    attributes.extend(weights(loss));
    let ignored = loss.ignored();
    attributes.extend(ignored.map(|index| ("ignore", index.to_string())));
    attributes
}

/// The keys of weights of a loss that are not all 1.
fn weights(loss: &Loss) -> Vec<(&'static str, String)> {
    let list = |weights: &[f64]| {
        let weights: Vec<String> = weights.iter().map(|weight| real(*weight)).collect();
        weights.join(",")
    };
    let of_classes = |weights: &ClassWeights| match weights {
        ClassWeights::Listed(weights) => list(weights),
        ClassWeights::InverseFrequency(_) => ClassWeights::INVERSE_FREQUENCY.to_owned(),
    };
    let keys = match loss {
        Loss::MeanSquaredError | Loss::SoftmaxCrossEntropy { .. } => Vec::new(),
        Loss::Elements(loss) => vec![("weights", list(&loss.weights))],
        Loss::Classes(loss) => match &loss.dice_weights {
            None => vec![("weights", of_classes(&loss.weights))],
            Some(of_dice) => vec![
                ("cross_entropy_weights", of_classes(&loss.weights)),
                ("dice_weights", of_classes(of_dice)),
            ],
        },
    };
    keys.into_iter()
        .filter(|(_, text)| !text.is_empty())
        .collect()
}
