//! Text of a plan: the table of strategies.

use super::explain::{write_changes, write_findings};
use super::predict::{assumed_text, epoch_pairs, interval_text, precision_text};
use crate::number::counted;
use crate::table::{Side, Table};
use partita::{Candidate, LayerPrecision, Planned};
use partita_oracle::Prediction;
use partita_plan::Refusal;
use std::io::{self, Write};

/// Rows of the ranking that fit on a screen.
const ROWS_MAX: usize = 10;
/// Candidates of the Pareto front that are listed after these.
const FRONT_MAX: usize = 5;
/// Limiting factors that are listed.
const FINDINGS_MAX: usize = 8;

/// Writes a plan: a screenful, or `all` of it.
pub fn plan(planned: &Planned, all: bool, out: &mut dyn Write) -> io::Result<()> {
    if let Some(text) = &planned.not_built {
        writeln!(out, "{text}")?;
    }
    write_ranking(planned, all, out)?;
    if let Some((best, prediction)) = planned.fitting().next() {
        writeln!(out, "\nBest strategy: {}", prediction.bottleneck)?;
        if let Some(interval) = &prediction.interval {
            writeln!(out, "Iteration: {}", interval_text(interval))?;
            if let Some(text) = assumed_text(interval) {
                writeln!(out, "Assumed, with its share of the iteration: {text}")?;
            }
        }
        if prediction.precision != LayerPrecision::F32 {
            writeln!(out, "precision {}", precision_text(prediction.precision))?;
        }
        let (software, input) = (&planned.software, planned.input.name());
        writeln!(out, "Software: {software}; input is {input}")?;
        if let Some(dataset) = &planned.dataset {
            writeln!(out, "Dataset: {dataset}")?;
        }
        if let Some(epoch) = &best.epoch {
            for (name, text) in epoch_pairs(epoch) {
                writeln!(out, "{}: {text}", capitalized(name))?;
            }
        }
        if !planned.kernels_pinned {
            writeln!(
                out,
                "Kernels are not pinned: this machine file lists no kernels, so times come from \
                 formulas and the workspace of each is not known"
            )?;
        }
        if let Some(explanation) = &best.explanation {
            write_findings(&explanation.findings, FINDINGS_MAX, out)?;
            write_changes(explanation, out)?;
        }
    }
    write_refusals(planned, all, out)
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Times within this factor of the first of a line are on that line, unless they need less memory.
const ALIKE: f64 = 1.003;
/// Memory below this factor of the first of a line is on a line of its own.
const SMALLER: f64 = 0.99;

/// The first lines, then those of the Pareto front; `all` has a line for each strategy.
fn write_ranking(planned: &Planned, all: bool, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("iteration", Side::Right),
        ("samples/s", Side::Right),
        ("memory", Side::Right),
        ("front", Side::Left),
        ("strategy", Side::Left),
    ]);
    let lines = lines(planned, all);
    let total = planned.fitting().count();
    let most = if all { usize::MAX } else { ROWS_MAX };
    let behind = lines.iter().skip(most).filter(|line| line.first.front);
    let mut shown = 0;
    let front_max = if planned.front { usize::MAX } else { FRONT_MAX };
    for line in lines.iter().take(most).chain(behind.take(front_max)) {
        let prediction = line.prediction;
        let alike = match line.alike {
            0 => String::new(),
            alike => format!("  (and {alike} within 0.3 %)"),
        };
        shown += 1 + line.alike;
        table.row(vec![
            prediction.iteration_seconds.to_string(),
            format!("{:.2}", prediction.samples_per_second),
            prediction.memory_bytes_max.to_string(),
            if line.first.front { "*" } else { "" }.to_owned(),
            format!("{}{alike}", line.first.strategy),
        ]);
    }
    table.write(out)?;
    let hidden = lines.iter().any(|line| line.alike > 0);
    let rest = match total - shown {
        0 if hidden => "Each is listed by --all. ".to_owned(),
        0 => String::new(),
        left => format!("... and {left} more, listed by --all. "),
    };
    if total > 0 {
        writeln!(
            out,
            "{rest}* Pareto-optimal: no other is both faster and smaller"
        )?;
    }
    let needs = planned
        .fitting()
        .map(|(one, prediction)| (prediction.memory_bytes_max, one));
    if let Some((least, one)) = needs
        .min_by_key(|(least, _)| *least)
        .filter(|_| planned.front)
    {
        writeln!(out, "The least memory is {least}, with `{}`", one.strategy)?;
    }
    write_ties(planned, total, out)
}

/// A strategy, and how many others take as long and need no less memory.
struct RankingLine<'a> {
    first: &'a Candidate,
    prediction: &'a Prediction,
    alike: usize,
}

fn lines(planned: &Planned, all: bool) -> Vec<RankingLine<'_>> {
    let mut lines: Vec<RankingLine<'_>> = Vec::new();
    for (candidate, prediction) in planned.fitting() {
        let is_alike = |line: &&mut RankingLine<'_>| {
            let first = line.prediction;
            prediction.iteration_seconds.0 <= ALIKE * first.iteration_seconds.0
                && prediction.memory_bytes_max.0 as f64 >= SMALLER * first.memory_bytes_max.0 as f64
        };
        match lines.iter_mut().find(is_alike).filter(|_| !all) {
            Some(line) => line.alike += 1,
            None => lines.push(RankingLine {
                first: candidate,
                prediction,
                alike: 0,
            }),
        }
    }
    lines
}

/// How sure the first place is.
fn write_ties(planned: &Planned, total: usize, out: &mut dyn Write) -> io::Result<()> {
    let first = planned.fitting().next();
    let Some(probability) = first.and_then(|(one, _)| one.probability_fastest) else {
        return Ok(());
    };
    let Some(text) = ties_text(planned.ties(), total, probability) else {
        return Ok(());
    };
    // A wide interval may reach further down than that of a strategy before it.
    let likelier = planned
        .fitting()
        .filter_map(|(one, _)| Some((one.probability_fastest?, &one.strategy)))
        .filter(|(other, _)| *other > probability)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match likelier {
        Some((other, strategy)) => writeln!(
            out,
            "{text}, `{strategy}` with {:.0} %, though it is predicted to take longer",
            100.0 * other
        ),
        None => writeln!(out, "{text}"),
    }
}

/// How sure the first place is: it and the next are `ties` of `total`. None where there is nothing to compare.
pub fn ties_text(ties: usize, total: usize, probability: f64) -> Option<String> {
    let percent = 100.0 * probability;
    match (ties, total) {
        (_, ..2) => None,
        (..2, _) => Some(format!(
            "The first of {total} is the fastest with probability {percent:.0} %"
        )),
        (ties, _) => Some(format!(
            "1 to {ties} of {total} are within prediction error: the first is the fastest with probability \
             {percent:.0} %"
        )),
    }
}

/// Refusals by kind with the first of each, or all of them.
fn write_refusals(planned: &Planned, all: bool, out: &mut dyn Write) -> io::Result<()> {
    let refused = || {
        let refused = planned.candidates.iter();
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
    writeln!(out, "\nNot chosen, with {} per rank{hint}:", planned.memory)?;
    if all {
        for (one, _, reason) in refused() {
            writeln!(out, "- {}: {reason}", one.strategy)?;
        }
        return Ok(());
    }
    for heading in Heading::ALL {
        let of_kind = || refused().filter(|(_, refusal, _)| Heading::of(*refusal) == heading);
        if let Some((one, _, reason)) = of_kind().next() {
            let (single, several) = heading.texts();
            let text = counted(of_kind().count(), single, several);
            writeln!(out, "- {text}, first `{}`: {reason}", one.strategy)?;
        }
    }
    Ok(())
}

/// Kinds of refusals.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heading {
    Memory,
    Slower,
    Large,
    Untried,
    Unsuited,
    Unknown,
}

impl Heading {
    const ALL: [Heading; 6] = [
        Self::Untried,
        Self::Large,
        Self::Memory,
        Self::Slower,
        Self::Unsuited,
        Self::Unknown,
    ];

    fn of(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Memory(_) => Self::Memory,
            Refusal::Slower => Self::Slower,
            Refusal::Large => Self::Large,
            Refusal::Untried => Self::Untried,
            Refusal::Unsuited => Self::Unsuited,
            Refusal::Unknown => Self::Unknown,
        }
    }

    /// What is said of one, and of several.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Memory => ("does not fit in memory", "do not fit in memory"),
            Self::Slower => ("cannot be the fastest", "cannot be the fastest"),
            Self::Large => (
                "has a program that is too large to be simulated",
                "have programs that are too large to be simulated",
            ),
            Self::Untried => ("was not looked at", "were not looked at"),
            Self::Unsuited => (
                "does not suit model, batch or ranks",
                "do not suit model, batch or ranks",
            ),
            Self::Unknown => ("cannot be costed", "cannot be costed"),
        }
    }
}
