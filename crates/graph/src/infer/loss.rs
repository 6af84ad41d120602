//! Checks of the options of losses.

use super::{check_share, in_f32, in_range};
use crate::{ClassWeights, ElementFunction, GraphError, Loss, Shape};

/// Errors: an option is out of range, or there is not one weight per channel.
pub(super) fn check_loss(node: &str, loss: &Loss, input: Shape) -> Result<(), GraphError> {
    match loss {
        Loss::MeanSquaredError => {}
        Loss::SoftmaxCrossEntropy { smoothing } => check_share(node, "smoothing", *smoothing)?,
        Loss::Elements(loss) => match loss.function {
            ElementFunction::Squared
            | ElementFunction::Absolute
            | ElementFunction::LogisticEntropy => {}
            ElementFunction::Huber { delta } => positive(node, "delta", delta, 1.0)?,
            ElementFunction::SmoothL1 { beta } => positive(node, "beta", beta, 1.0)?,
        },
        Loss::Classes(loss) => {
            check_share(node, "smoothing", loss.smoothing)?;
            positive(node, "smooth", loss.smooth, 1e-5)?;
            for (key, factor) in [("dice", loss.dice), ("cross_entropy", loss.cross_entropy)] {
                let ok = factor >= 0.0 && in_f32(factor);
                let possible = "finite and at least 0, as f32 holds it";
                in_range(node, key, ok, factor, possible, 1.0)?;
            }
            let both = loss.dice + loss.cross_entropy;
            in_range(node, "dice", both > 0.0, both, "above 0", 1.0)?;
            if loss.dice != 0.0 && !loss.background {
                let ok = input.channels > 1;
                let possible = "true for one class, which is the background";
                in_range(node, "background", ok, false, possible, true)?;
            }
            // Class indices are read as numbers that f32 holds.
            let ignore = loss.ignore.unwrap_or(0);
            let ok = (-32768..=32767).contains(&ignore);
            let nearest = ignore.clamp(-32768, 32767);
            in_range(node, "ignore", ok, ignore, "-32768 to 32767", nearest)?;
            let of_dice = loss.dice_weights.as_ref();
            let of_dice = of_dice.map_or(&[][..], ClassWeights::values);
            check_weights(node, "dice_weights", of_dice, input.channels)?;
        }
    }
    check_weights(node, "weights", loss.weights(), input.channels)
}

fn positive(node: &str, key: &'static str, asked: f64, nearest: f64) -> Result<(), GraphError> {
    let ok = asked > 0.0 && in_f32(asked);
    in_range(
        node,
        key,
        ok,
        asked,
        "finite and above 0, as f32 holds it",
        nearest,
    )
}

/// One finite weight per channel, none negative and not all 0.
fn check_weights(
    node: &str,
    key: &'static str,
    weights: &[f64],
    channels: usize,
) -> Result<(), GraphError> {
    if weights.is_empty() {
        return Ok(());
    }
    let text = |weights: &[f64]| {
        let all: Vec<String> = weights.iter().map(f64::to_string).collect();
        all.join(",")
    };
    let is_sound = |weight: &f64| *weight >= 0.0 && in_f32(*weight);
    let mut nearest: Vec<f64> = weights.to_vec();
    nearest.resize(channels.min(1 << 10), 1.0);
    for weight in &mut nearest {
        *weight = if is_sound(weight) { *weight } else { 1.0 };
    }
    if nearest.iter().all(|weight| *weight == 0.0) {
        nearest.fill(1.0);
    }
    let ok = weights.len() == channels
        && weights.iter().all(is_sound)
        && weights.iter().any(|weight| *weight > 0.0);
    let possible = "one number per channel, separated by commas, at least 0 and not all 0";
    in_range(node, key, ok, text(weights), possible, text(&nearest))
}
