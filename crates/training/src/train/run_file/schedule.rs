//! The table `[schedule]` of a run file.

use crate::train::section::{RunFileError, Section, float};
use partita_session::{LearningRateSchedule, Milestones, WarmupLength};
use toml::de::DeValue;

const FACTOR: &str = "a number from 0 to 1";
/// Keys of all kinds.
const WARMUP: [&str; 5] = [
    "kind",
    "learning_rate",
    "warmup_epochs",
    "warmup_steps",
    "warmup_factor",
];
const ALL_KEYS: [&str; 15] = [
    "kind",
    "learning_rate",
    "final_factor",
    "warmup_epochs",
    "warmup_steps",
    "warmup_factor",
    "power",
    "gamma",
    "milestones",
    "every",
    "period",
    "multiplier",
    "factor",
    "patience",
    "cooldown",
];

#[derive(Clone, Copy)]
enum Kind {
    Constant,
    Linear,
    Cosine,
    Polynomial,
    Exponential,
    Step,
    CosineRestarts,
    Plateau,
}

const KINDS: [(&str, Kind); 8] = [
    ("constant", Kind::Constant),
    ("linear", Kind::Linear),
    ("cosine", Kind::Cosine),
    ("polynomial", Kind::Polynomial),
    ("exponential", Kind::Exponential),
    ("step", Kind::Step),
    ("cosine_restarts", Kind::CosineRestarts),
    ("plateau", Kind::Plateau),
];

impl Kind {
    /// Keys besides those of all kinds.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::Constant => &[],
            Self::Linear | Self::Cosine => &["final_factor"],
            Self::Polynomial => &["final_factor", "power"],
            Self::Exponential => &["gamma"],
            Self::Step => &["gamma", "milestones", "every"],
            Self::CosineRestarts => &["final_factor", "period", "multiplier"],
            Self::Plateau => &["final_factor", "factor", "patience", "cooldown"],
        }
    }
}

/// Reads the table.
pub fn schedule(top: &Section<'_>, epochs: usize) -> Result<LearningRateSchedule, RunFileError> {
    let expected = "a table `[schedule]` with `learning_rate`";
    let section = top.need("schedule", top.section("schedule")?, expected)?;
    section.check(&ALL_KEYS)?;
    let rate = section.single_or_zero("learning_rate", 1e-3)?;
    let rate = section.need("learning_rate", rate, "a number of at least 0, like 0.001")?;
    let kind = section.choice("kind", &KINDS)?.unwrap_or(Kind::Constant);
    section.check_kind(&[&WARMUP[..], kind.keys()].concat(), |key| {
        let have = KINDS.iter().filter(|(_, kind)| kind.keys().contains(&key));
        have.map(|(word, _)| format!("\"{word}\"")).collect()
    })?;
    let then = of_kind(&section, kind, rate, epochs as f64)?;
    warmup(&section, then)
}

fn of_kind(
    section: &Section<'_>,
    kind: Kind,
    rate: f64,
    epochs: f64,
) -> Result<LearningRateSchedule, RunFileError> {
    let final_factor = section.number("final_factor", FACTOR, |n| (0.0..=1.0).contains(&n))?;
    let final_factor = final_factor.unwrap_or(0.0);
    let gamma = |usual: f64| {
        let expected = format!("a number above 0 up to 1, like {usual}");
        section.number("gamma", expected, |n| n > 0.0 && n <= 1.0)
    };
    Ok(match kind {
        Kind::Constant => LearningRateSchedule::Constant { rate },
        Kind::Linear => LearningRateSchedule::Linear {
            rate,
            final_factor,
            epochs,
        },
        Kind::Cosine => LearningRateSchedule::Cosine {
            rate,
            final_factor,
            epochs,
        },
        Kind::Polynomial => LearningRateSchedule::Polynomial {
            rate,
            final_factor,
            epochs,
            power: section
                .number("power", "a number above 0, like 2", |n| n > 0.0)?
                .unwrap_or(1.0),
        },
        Kind::Exponential => LearningRateSchedule::Exponential {
            rate,
            gamma: section.need("gamma", gamma(0.95)?, "a factor per epoch, like 0.95")?,
        },
        Kind::Step => LearningRateSchedule::Step {
            rate,
            gamma: gamma(0.1)?.unwrap_or(0.1),
            milestones: milestones(section)?,
        },
        Kind::CosineRestarts => {
            let period = "epochs above 0, like 10";
            let multiplier = "a number from 1 on, like 2";
            LearningRateSchedule::CosineRestarts {
                rate,
                final_factor,
                period: section.need(
                    "period",
                    section.number("period", period, |n| n > 0.0)?,
                    period,
                )?,
                multiplier: section
                    .number("multiplier", multiplier, |n| n >= 1.0)?
                    .unwrap_or(1.0),
            }
        }
        Kind::Plateau => plateau(section, rate, final_factor)?,
    })
}

fn plateau(
    section: &Section<'_>,
    rate: f64,
    final_factor: f64,
) -> Result<LearningRateSchedule, RunFileError> {
    let factor = "a number above 0 and below 1, like 0.1";
    Ok(LearningRateSchedule::Plateau {
        rate,
        factor: section
            .number("factor", factor, |n| n > 0.0 && n < 1.0)?
            .unwrap_or(0.1),
        patience: section.natural("patience")?.unwrap_or(10),
        cooldown: section.natural("cooldown")?.unwrap_or(0),
        final_factor,
    })
}

fn milestones(section: &Section<'_>) -> Result<Milestones, RunFileError> {
    let expected = "a list of rising epochs, like [30, 60, 80]";
    let at = section.read("milestones", expected, |value| {
        let DeValue::Array(list) = value else {
            return None;
        };
        let epochs: Option<Vec<f64>> = list.iter().map(|one| float(one.get_ref())).collect();
        epochs.filter(|all| {
            all.first().is_some_and(|&first| first > 0.0) && all.is_sorted_by(|a, b| a < b)
        })
    })?;
    let every = section.number("every", "epochs above 0, like 30", |n| n > 0.0)?;
    match (at, every) {
        (Some(_), Some(_)) => {
            Err(section.refuse("every", "either `milestones` or `every`, not both"))
        }
        (None, None) => {
            let expected = format!("{expected}, or `every = 30`");
            section.need("milestones", None, expected)
        }
        (Some(at), None) => Ok(Milestones::At(at)),
        (None, Some(every)) => Ok(Milestones::Every(every)),
    }
}

fn warmup(
    section: &Section<'_>,
    then: LearningRateSchedule,
) -> Result<LearningRateSchedule, RunFileError> {
    let epochs = section.number("warmup_epochs", "epochs above 0, like 5", |n| n > 0.0)?;
    let steps = section.count("warmup_steps")?;
    let factor = section.number("warmup_factor", FACTOR, |n| (0.0..=1.0).contains(&n))?;
    let length = match (epochs, steps) {
        (Some(_), Some(_)) => {
            let expected = "either `warmup_epochs` or `warmup_steps`, not both";
            return Err(section.refuse("warmup_steps", expected));
        }
        (Some(epochs), None) => WarmupLength::Epochs(epochs),
        (None, Some(steps)) => WarmupLength::Steps(steps as u64),
        (None, None) if factor.is_some() => {
            let expected =
                "a factor with `warmup_epochs` or `warmup_steps`, like `warmup_epochs = 5`";
            return Err(section.refuse("warmup_factor", expected));
        }
        (None, None) => return Ok(then),
    };
    Ok(LearningRateSchedule::Warmup {
        length,
        factor: factor.unwrap_or(0.0),
        then: Box::new(then),
    })
}
