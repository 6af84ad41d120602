//! The table `[optimizer]` of a run file.

use crate::train::section::{RunFileError, Section};
use partita_program::Optimizer;
use partita_space::help::Expected;

const ADAM_KEYS: [&str; 7] = [
    "kind",
    "beta1",
    "beta2",
    "epsilon",
    "weight_decay",
    "decay_norms",
    "clip",
];
const SGD_KEYS: [&str; 6] = [
    "kind",
    "momentum",
    "nesterov",
    "weight_decay",
    "decay_norms",
    "clip",
];
const LARS_KEYS: [&str; 7] = [
    "kind",
    "momentum",
    "trust",
    "epsilon",
    "weight_decay",
    "decay_norms",
    "clip",
];
const BELOW_ONE: &str = "a number from 0 up to, but not including, 1 in single precision";

/// The optimizer of a run.
pub struct OptimizerSettings {
    /// Its rule with all constants.
    pub rule: Optimizer,
    /// Whether biases, scales, shifts and slopes have its weight decay and trust ratio.
    pub decay_norms: bool,
    /// Largest global norm of gradients.
    pub clip: Option<f64>,
}

#[derive(Clone, Copy)]
enum Kind {
    Adam,
    AdamW,
    Sgd,
    Lars,
    Lamb,
}

impl Kind {
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Adam | Self::AdamW | Self::Lamb => &ADAM_KEYS,
            Self::Sgd => &SGD_KEYS,
            Self::Lars => &LARS_KEYS,
        }
    }
}

const KINDS: [(&str, Kind); 5] = [
    ("adam", Kind::Adam),
    ("adamw", Kind::AdamW),
    ("sgd", Kind::Sgd),
    ("lars", Kind::Lars),
    ("lamb", Kind::Lamb),
];

/// Reads the table; Adam with its usual constants where there is none.
pub fn optimizer(top: &Section<'_>) -> Result<OptimizerSettings, RunFileError> {
    let Some(section) = top.section("optimizer")? else {
        return Ok(OptimizerSettings {
            rule: partita_forecast::ADAM,
            decay_norms: true,
            clip: None,
        });
    };
    let kind = section.choice("kind", &KINDS)?.unwrap_or(Kind::Adam);
    section.check_kind(kind.keys(), |key| {
        let have = KINDS.iter().filter(|(_, kind)| kind.keys().contains(&key));
        have.map(|(word, _)| format!("\"{word}\"")).collect()
    })?;
    let rule = rule(&section, kind)?;
    let decay_norms = section.flag("decay_norms")?;
    Ok(OptimizerSettings {
        decay_norms: decay_norms.unwrap_or(!rule.has_trust_ratio()),
        rule,
        clip: section.single("clip", 1.0)?,
    })
}

fn rule(section: &Section<'_>, kind: Kind) -> Result<Optimizer, RunFileError> {
    let below_one = |key, default| {
        // In f32, in which kernels divide by `1 - beta`.
        let is_below_one = |number: f64| number >= 0.0 && (number as f32) < 1.0;
        let number = section.number(key, BELOW_ONE, is_below_one)?;
        Ok::<f64, RunFileError>(number.unwrap_or(default))
    };
    let or_zero = |key, default: f64| {
        let usual = if default > 0.0 { default } else { 1e-4 };
        let number = section.single_or_zero(key, usual)?;
        Ok::<f64, RunFileError>(number.unwrap_or(default))
    };
    let weight_decay = match kind {
        Kind::Adam | Kind::Sgd => or_zero("weight_decay", 0.0)?,
        Kind::AdamW | Kind::Lamb => or_zero("weight_decay", 1e-2)?,
        Kind::Lars => or_zero("weight_decay", 5e-4)?,
    };
    let betas = || Ok::<_, RunFileError>([below_one("beta1", 0.9)?, below_one("beta2", 0.999)?]);
    let epsilon =
        |usual: f64| Ok::<_, RunFileError>(section.single("epsilon", usual)?.unwrap_or(usual));
    Ok(match kind {
        Kind::Adam => {
            let ([beta1, beta2], epsilon) = (betas()?, epsilon(1e-8)?);
            Optimizer::Adam {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            }
        }
        Kind::AdamW => {
            let ([beta1, beta2], epsilon) = (betas()?, epsilon(1e-8)?);
            Optimizer::AdamW {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            }
        }
        Kind::Lamb => {
            let ([beta1, beta2], epsilon) = (betas()?, epsilon(1e-6)?);
            Optimizer::Lamb {
                beta1,
                beta2,
                epsilon,
                weight_decay,
            }
        }
        Kind::Lars => Optimizer::Lars {
            momentum: below_one("momentum", 0.9)?,
            trust: section.single("trust", 1e-3)?.unwrap_or(1e-3),
            epsilon: or_zero("epsilon", 0.0)?,
            weight_decay,
        },
        Kind::Sgd => sgd(section, below_one("momentum", 0.0)?, weight_decay)?,
    })
}

fn sgd(section: &Section<'_>, momentum: f64, weight_decay: f64) -> Result<Optimizer, RunFileError> {
    let nesterov = section.flag("nesterov")?;
    if nesterov != Some(true) {
        return Ok(Optimizer::Sgd {
            momentum,
            weight_decay,
        });
    }
    if momentum == 0.0 {
        let expected =
            Expected::from("false without `momentum`").nearest("`momentum = 0.9` with it");
        return Err(section.refuse("nesterov", expected));
    }
    Ok(Optimizer::Nesterov {
        momentum,
        weight_decay,
    })
}
