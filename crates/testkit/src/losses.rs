//! Random losses.

use crate::Draws;
use partita_graph::{ClassLoss, ClassWeights, ElementFunction, ElementLoss, Loss};

/// Makes a loss for outputs of this many channels.
pub(crate) type LossOf = fn(usize) -> Loss;

/// Draws a loss of any kind.
pub(crate) fn draw_loss(draws: &mut Draws) -> LossOf {
    draws.pick(&ALL)
}

/// Plain losses come most often.
const ALL: [LossOf; 18] = [
    |_| Loss::MeanSquaredError,
    |_| Loss::MeanSquaredError,
    |_| Loss::CROSS_ENTROPY,
    |_| Loss::CROSS_ENTROPY,
    |_| Loss::SoftmaxCrossEntropy { smoothing: 0.1 },
    |channels| elements(ElementFunction::Squared, weights(channels)),
    |_| elements(ElementFunction::Absolute, Vec::new()),
    |channels| elements(ElementFunction::Huber { delta: 0.4 }, weights(channels)),
    |_| elements(ElementFunction::SmoothL1 { beta: 0.3 }, Vec::new()),
    |channels| elements(ElementFunction::LogisticEntropy, weights(channels)),
    |channels| {
        Loss::Classes(ClassLoss {
            weights: ClassWeights::Listed(weights(channels)),
            smoothing: 0.1,
            ..ClassLoss::CROSS_ENTROPY
        })
    },
    |_| {
        Loss::Classes(ClassLoss {
            ignore: Some(0),
            ..ClassLoss::CROSS_ENTROPY
        })
    },
    |_| Loss::Classes(ClassLoss::DICE),
    |channels| {
        Loss::Classes(ClassLoss {
            weights: ClassWeights::Listed(weights(channels)),
            ..ClassLoss::DICE
        })
    },
    |_| {
        Loss::Classes(ClassLoss {
            batch: true,
            smooth: 1.0,
            ..ClassLoss::DICE
        })
    },
    |channels| {
        Loss::Classes(ClassLoss {
            background: channels == 1,
            cross_entropy: 0.5,
            dice_weights: Some(ClassWeights::Listed(weights(channels))),
            ..ClassLoss::DICE
        })
    },
    |channels| {
        Loss::Classes(ClassLoss {
            weights: ClassWeights::Listed(weights(channels)),
            dice_weights: Some(ClassWeights::ONES),
            ignore: Some(1),
            cross_entropy: 2.0,
            ..ClassLoss::DICE
        })
    },
    |_| {
        Loss::Classes(ClassLoss {
            batch: true,
            ignore: Some(0),
            cross_entropy: 1.0,
            ..ClassLoss::DICE
        })
    },
];

fn elements(function: ElementFunction, weights: Vec<f64>) -> Loss {
    Loss::Elements(ElementLoss { function, weights })
}

fn weights(channels: usize) -> Vec<f64> {
    (0..channels).map(|c| 0.5 + 0.75 * c as f64).collect()
}
