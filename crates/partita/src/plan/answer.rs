use crate::error::CliError;
use crate::explain::{Explanation, write_changes, write_findings};
use crate::table::{Side, Table, write_json};
use partita_oracle::Prediction;
use partita_plan::Refusal;
use partita_space::Bytes;
use serde::{Serialize, Serializer};
use std::io::Write;

/// Rows of the ranking that fit on a screen with all else.
const ROWS_MAX: usize = 10;
/// Candidates of the front that are listed behind these.
const FRONT_MAX: usize = 5;
/// Bounds that are listed.
const FINDINGS_MAX: usize = 8;

/// What became of a strategy.
#[derive(Clone, Debug, Serialize)]
pub struct Candidate {
    /// Its short form.
    pub strategy: String,
    /// Whether no other that fits is both faster and smaller.
    pub front: bool,
    /// What the oracle says of it; absent if there is no program.
    #[serde(flatten)]
    pub prediction: Option<Prediction>,
    /// Why it cannot be used here, where it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same in a word.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "word")]
    pub refusal: Option<Refusal>,
    /// Why it takes as long as it does; of the best one alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explanation: Option<Explanation>,
}

#[allow(clippy::ref_option, reason = "serde passes references")]
fn word<S: Serializer>(refusal: &Option<Refusal>, serializer: S) -> Result<S::Ok, S::Error> {
    let word = refusal.map(|refusal| match refusal {
        Refusal::Memory(_) => "memory",
        Refusal::Slower => "slower",
        Refusal::Unsuited => "unsuited",
        Refusal::Unknown => "unknown",
    });
    word.serialize(serializer)
}

/// What became of all.
pub struct Answer {
    /// Best first, then those refused.
    pub candidates: Vec<Candidate>,
    /// That a rank may fill.
    pub memory: Bytes,
}

impl Answer {
    /// A list of all.
    pub fn write_json(&self, out: &mut dyn Write) -> Result<(), CliError> {
        write_json(out, &self.candidates)
    }

    /// A screen full, or `all` of it.
    pub fn write(&self, all: bool, out: &mut dyn Write) -> Result<(), CliError> {
        self.write_ranking(if all { usize::MAX } else { ROWS_MAX }, out)?;
        if let Some((best, prediction)) = self.fitting().next() {
            writeln!(out, "\nOf the first: {}", prediction.bottleneck)?;
            if let Some(explanation) = &best.explanation {
                write_findings(&explanation.findings, FINDINGS_MAX, out)?;
                write_changes(explanation, out)?;
            }
        }
        self.write_refusals(all, out)
    }

    fn fitting(&self) -> impl Iterator<Item = (&Candidate, &Prediction)> {
        let fitting = self.candidates.iter().filter(|one| one.reason.is_none());
        fitting.filter_map(|one| Some((one, one.prediction.as_ref()?)))
    }

    /// The first rows, and behind them those of the front.
    fn write_ranking(&self, most: usize, out: &mut dyn Write) -> Result<(), CliError> {
        let mut table = Table::new(&[
            ("iteration", Side::Right),
            ("samples/s", Side::Right),
            ("memory", Side::Right),
            ("front", Side::Left),
            ("strategy", Side::Left),
        ]);
        let behind = self.fitting().skip(most).filter(|(one, _)| one.front);
        let behind: Vec<_> = behind.take(FRONT_MAX).collect();
        let total = self.fitting().count();
        let left = total - total.min(most) - behind.len();
        for (candidate, prediction) in self.fitting().take(most).chain(behind) {
            table.row(vec![
                prediction.iteration_seconds.to_string(),
                format!("{:.2}", prediction.samples_per_second),
                prediction.memory_bytes_max.to_string(),
                if candidate.front { "*" } else { "" }.to_owned(),
                candidate.strategy.clone(),
            ]);
        }
        table.write(out)?;
        let rest = match left {
            0 => String::new(),
            left => format!("... and {left} more, listed by --all. "),
        };
        if total > 0 {
            writeln!(out, "{rest}* no other is both faster and smaller")?;
        }
        Ok(())
    }

    /// Reasons by kind with the nearest example of each, or all of them.
    fn write_refusals(&self, all: bool, out: &mut dyn Write) -> Result<(), CliError> {
        let refused = || {
            let refused = self.candidates.iter();
            refused.filter_map(|one| Some((one, one.refusal?, one.reason.as_ref()?)))
        };
        if refused().next().is_none() {
            return Ok(());
        }
        let hint = if all {
            ""
        } else {
            " (each is listed by --all)"
        };
        writeln!(out, "\nNot chosen, with {} a rank{hint}:", self.memory)?;
        if all {
            for (one, _, reason) in refused() {
                writeln!(out, "- {}: {reason}", one.strategy)?;
            }
            return Ok(());
        }
        for heading in Heading::ALL {
            let of_kind = || refused().filter(|(_, refusal, _)| Heading::of(*refusal) == heading);
            if let Some((one, _, reason)) = of_kind().next() {
                let (count, says) = (of_kind().count(), heading.says());
                writeln!(out, "- {count} {says}, first `{}`: {reason}", one.strategy)?;
            }
        }
        Ok(())
    }
}

/// Under what a refusal is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heading {
    Memory,
    Slower,
    Unsuited,
    Unknown,
}

impl Heading {
    const ALL: [Heading; 4] = [Self::Memory, Self::Slower, Self::Unsuited, Self::Unknown];

    fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Memory(_) => Self::Memory,
            Refusal::Slower => Self::Slower,
            Refusal::Unsuited => Self::Unsuited,
            Refusal::Unknown => Self::Unknown,
        }
    }

    fn says(self) -> &'static str {
        match self {
            Self::Memory => "do not fit in memory",
            Self::Slower => "cannot be the fastest",
            Self::Unsuited => "do not suit model, batch or ranks",
            Self::Unknown => "cannot be costed",
        }
    }
}
