//! The factor of gradients in f16, whose smallest numbers would be lost.
//!
//! Gradients are multiplied from the loss on, and updates take the factor out again. Where they are not finite, the
//! update leaves everything as it is; a dynamic factor is halved then, and doubled after many updates in a row that
//! happened. As `torch.amp.GradScaler` does (PyTorch 2, `torch/amp/grad_scaler.py`), but that a dynamic factor is never
//! below 1, where updates happen whatever the gradients are: then no factor would make them finite.

use partita_run::Inputs;
use serde::{Deserialize, Serialize};

/// The factor at the start, unless another is asked for.
const START: f64 = 65_536.0;

/// Updates in a row after which it is doubled.
const UPDATES_UNTIL_DOUBLED: u64 = 2_000;

/// The greatest factor: gradients of 1 are still finite in f32, in which they are summed, over many elements.
pub const GREATEST_LOSS_SCALE: f64 = (1u64 << 60) as f64;

/// How gradients are scaled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LossScaling {
    /// By this factor.
    Fixed(f64),
    /// By a factor that follows the gradients.
    Dynamic,
}

/// Where the factor stands between two updates. Equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor.
    pub scale: f64,
    /// Updates that happened since it changed, or since one was skipped.
    pub clean: u64,
    /// Updates that were skipped.
    pub skipped: u64,
}

impl LossScaling {
    /// At the start of a training, or where another training that began `from` here went on.
    pub(crate) fn start(self, from: Option<LossScale>) -> LossScale {
        let start = LossScale {
            scale: START,
            clean: 0,
            skipped: 0,
        };
        let from = from.unwrap_or(start);
        match self {
            Self::Fixed(scale) => LossScale { scale, ..from },
            Self::Dynamic => from,
        }
    }

    /// The factor of the next update, if it has one.
    fn factor(self, state: &LossScale) -> Option<f64> {
        match self {
            Self::Fixed(scale) => Some(scale),
            Self::Dynamic => (state.scale > 1.0).then_some(state.scale),
        }
    }

    /// Tells a step what it needs to know.
    pub(crate) fn tell(self, state: &LossScale, inputs: &mut Inputs) {
        inputs.loss_scale = self.factor(state);
        inputs.skipped = state.skipped;
    }

    /// Learns from an update, whose gradients had squares with this sum.
    pub(crate) fn observe(self, state: &mut LossScale, total: f64) {
        let is_skipped = self.factor(state).is_some() && !total.is_finite();
        state.clean = if is_skipped { 0 } else { state.clean + 1 };
        state.skipped += u64::from(is_skipped);
        if self == Self::Dynamic && is_skipped {
            state.scale = (state.scale / 2.0).max(1.0);
        }
        if self == Self::Dynamic && state.clean == UPDATES_UNTIL_DOUBLED {
            state.scale = (state.scale * 2.0).min(GREATEST_LOSS_SCALE);
            state.clean = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Inputs {
        Inputs {
            step: 10,
            epoch: 0,
            seed: 0,
            learning_rate: 1.0,
            loss_scale: None,
            skipped: 0,
            samples: Vec::new(),
            next_samples: Vec::new(),
            next_epoch: 0,
        }
    }

    #[test]
    fn a_dynamic_factor_is_halved_and_doubled() {
        let dynamic = LossScaling::Dynamic;
        let mut state = dynamic.start(None);
        for _ in 0..3 {
            dynamic.observe(&mut state, f64::INFINITY);
        }
        dynamic.observe(&mut state, f64::NAN);
        assert_eq!((state.scale, state.skipped), (4096.0, 4));
        for update in 1..UPDATES_UNTIL_DOUBLED {
            dynamic.observe(&mut state, 1.0);
            assert_eq!((state.scale, state.clean), (4096.0, update));
        }
        dynamic.observe(&mut state, 1.0);
        assert_eq!((state.scale, state.clean, state.skipped), (8192.0, 0, 4));
        let mut inputs = inputs();
        dynamic.tell(&state, &mut inputs);
        assert_eq!((inputs.loss_scale, inputs.update()), (Some(8192.0), 6));
    }

    #[test]
    fn without_a_factor_every_update_happens() {
        let dynamic = LossScaling::Dynamic;
        let mut state = dynamic.start(None);
        for _ in 0..20 {
            dynamic.observe(&mut state, f64::NAN);
        }
        assert_eq!((state.scale, state.skipped), (1.0, 16));
        let mut inputs = inputs();
        dynamic.tell(&state, &mut inputs);
        assert_eq!(inputs.loss_scale, None);
        assert_eq!(inputs.update_factor(f64::INFINITY, f64::MAX), Some(0.0));
    }

    #[test]
    fn a_fixed_factor_stays_and_updates_are_skipped() {
        let fixed = LossScaling::Fixed(128.0);
        let mut state = fixed.start(Some(LossScale {
            scale: 512.0,
            clean: 3,
            skipped: 2,
        }));
        fixed.observe(&mut state, f64::INFINITY);
        assert_eq!((state.scale, state.clean, state.skipped), (128.0, 0, 3));
        let mut inputs = inputs();
        fixed.tell(&state, &mut inputs);
        assert_eq!(inputs.update_factor(f64::INFINITY, 1.0), None);
        // The norm is 2, the bound 1.
        let factor = inputs.update_factor((2.0 * 128.0_f64).powi(2), 1.0);
        assert!((factor.unwrap() * 128.0 - 0.5).abs() < 1e-6, "{factor:?}");
    }
}
