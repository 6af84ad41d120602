//! A plan as one page of HTML that needs nothing else: tables, and pictures in SVG.

mod axis;
mod memory;
mod palette;
mod pareto;
mod partition;
mod ranking;
mod scaling;
mod svg;
mod timeline;

use crate::text::basis;
use partita::figures::{Best, Figures, ranked};
use partition::Partition;
use svg::escape;

const STYLE: &str = include_str!("page/style.css");

/// How a page begins.
pub const DOCTYPE: &str = "<!DOCTYPE html>";

/// Regions of ranks that are listed.
const REGIONS_MAX: usize = 32;

/// The page about a plan.
pub fn page(facts: &Figures) -> String {
    let title = escape(&format!(
        "{} on {} ranks of {}",
        facts.model, facts.ranks, facts.machine
    ));
    let sections = [
        summary(facts),
        section(
            "Ranking",
            &(ranking::table(facts) + &ranking::refused(facts)),
        ),
        scaling_section(facts),
        memory_section(facts),
        best_sections(facts),
        pareto_section(facts),
    ];
    format!(
        "{DOCTYPE}\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta \
         charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n\
         <title>Plan: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>How to train {title}</h1>\n{}</main>\n<footer><p>Written by partita {}. All times are \
         predictions.</p></footer>\n</body>\n</html>\n",
        sections.concat(),
        env!("CARGO_PKG_VERSION")
    )
}

fn section(title: &str, content: &str) -> String {
    format!(
        "<section>\n<h2>{}</h2>\n{content}</section>\n",
        escape(title)
    )
}

/// A picture with words below.
fn figure(picture: &str, caption: &str) -> String {
    format!(
        "<figure>\n{picture}<figcaption>{}</figcaption>\n</figure>\n",
        escape(caption)
    )
}

fn summary(facts: &Figures) -> String {
    let Some(Best {
        strategy,
        prediction,
        ..
    }) = &facts.best
    else {
        return pairs(facts, &[]);
    };
    let mut text = pairs(
        facts,
        &[
            ("best strategy", strategy.to_string()),
            ("time of a step", prediction.iteration_seconds.to_string()),
            ("samples/s", format!("{:.2}", prediction.samples_per_second)),
            (
                "memory",
                format!("{} on the largest rank", prediction.memory_bytes_max),
            ),
            ("seconds", basis(prediction.basis).to_owned()),
            ("program", prediction.digest.clone()),
        ],
    );
    text.push_str(&format!(
        "<p id=\"bottleneck\"><strong>{}</strong></p>\n",
        escape(&prediction.bottleneck)
    ));
    if !prediction.limits.is_empty() {
        let limits = prediction
            .limits
            .iter()
            .map(|limit| format!("<li>{}</li>\n", escape(limit)));
        text.push_str(&format!(
            "<ul id=\"limits\">\n{}</ul>\n",
            limits.collect::<String>()
        ));
    }
    text
}

fn pairs(facts: &Figures, more: &[(&str, String)]) -> String {
    let reading = if facts.no_io {
        ", reading left out"
    } else {
        ""
    };
    let first = [
        ("model", facts.model.clone()),
        ("machine", format!("{}{reading}", facts.machine)),
        ("ranks", facts.ranks.to_string()),
        ("mini-batch", format!("{} samples", facts.batch)),
        ("limit", format!("{} a rank", facts.memory)),
    ];
    let rows = first.iter().chain(more).map(|(name, value)| {
        format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n",
            escape(name),
            escape(value)
        )
    });
    format!(
        "<table class=\"facts\"><tbody>\n{}</tbody></table>\n",
        rows.collect::<String>()
    )
}

fn scaling_section(facts: &Figures) -> String {
    let curves = figure(
        &scaling::curves(facts),
        "Samples per second with the same mini-batch on more and more ranks: the best plan at \
         each number, \
         data parallelism alone as far as every rank has a sample, and the ideal, in proportion \
         to the \
         first number of ranks on which something fits. Both axes are logarithmic.",
    );
    let bars = figure(
        &scaling::bars(facts),
        "What a sample costs in time of ranks, by what the critical path of the best plan is \
         spent on. Under \
         ideal scaling all bars are equally high; a cross stands where no strategy fits.",
    );
    section("Scaling", &(curves + &ranking::counts(facts) + &bars))
}

fn memory_section(facts: &Figures) -> String {
    if facts.itemized.is_empty() {
        return String::new();
    }
    let caption = format!(
        "What the largest rank holds at the moment at which it holds most, by what it is for: the \
         best \
         strategies of the ranking, data parallelism alone, and some that do not fit. Halos are \
         received \
         into the frames of tensors; what a communication library holds beside that is not \
         counted. A rank \
         may fill {}.",
        facts.memory
    );
    section("Memory", &figure(&memory::figure(facts), &caption))
}

fn best_sections(facts: &Figures) -> String {
    let Some(best) = &facts.best else {
        return String::new();
    };
    let mut split = String::new();
    if let Some(stages) = partition::stages(best) {
        let caption = format!(
            "Stages and their ranks; micro-batches go through them in the order of schedule {}.",
            best.strategy.schedule
        );
        split.push_str(&figure(&stages, &caption));
    }
    if let Some(partition) = Partition::of(&best.program) {
        split.push_str(&partition_figure(&partition));
    }
    split.push_str(&halo_table(best));
    let under = escape(&best.strategy.to_string());
    let split = format!("<p>Under <code>{under}</code>.</p>\n{split}");
    let timeline = figure(
        &timeline::figure(best),
        "A step of the best strategy as the simulator plays it, for some ranks in four lanes \
         each. Messages \
         and collectives that are under way together lie side by side; waiting for others is part of them.",
    );
    section("Who holds what", &split) + &section("A step in time", &timeline)
}

fn partition_figure(partition: &Partition) -> String {
    let others = match partition.sample_parts {
        1 => String::new(),
        parts => format!(
            " The mini-batch is split in {parts} parts; the ranks of the others hold their \
             samples the same \
             way."
        ),
    };
    let halo = match partition::halo_words(&partition.halo) {
        words if words.is_empty() => "Nothing of the input is exchanged.".to_owned(),
        words => format!(
            "Hatched is what ranks on both sides of a cut hold: the halo of the input is {words} \
             positions \
             (before + behind), drawn at least two points wide."
        ),
    };
    let caption = format!(
        "The input, cut as the ranks of the first samples hold it; ranks named \
         together hold the same. {halo}{others}"
    );
    let rows = partition.rows();
    let listed = rows.iter().take(REGIONS_MAX).map(|cells| {
        let cells = cells
            .iter()
            .map(|cell| format!("<td>{}</td>", escape(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    });
    let more = match rows.len().saturating_sub(REGIONS_MAX) {
        0 => String::new(),
        more => format!("<p>{more} more regions are cut the same way.</p>\n"),
    };
    format!(
        "{}<details><summary>First and last indices</summary>\n<table id=\"regions\"><thead><tr>\
         <th>ranks</th><th>samples</th><th>D</th><th>H</th><th>W</th></tr></thead><tbody>\n{}</tbody>\
         </table>\n{more}</details>\n",
        figure(&partition.figure(), &caption),
        listed.collect::<String>()
    )
}

fn halo_table(best: &Best) -> String {
    let halos = partition::halos(&best.program);
    if halos.is_empty() {
        return String::new();
    }
    let rows = halos.iter().map(|(width, names)| {
        format!(
            "<tr><td class=\"number\">{}</td><td>{}</td></tr>\n",
            escape(width),
            escape(&names.join(", "))
        )
    });
    format!(
        "<details><summary>Halos of all tensors</summary>\n<table id=\"halos\"><thead><tr>\
         <th class=\"number\">positions before + behind</th><th>tensors</th></tr></thead><tbody>\n{}</tbody>\
         </table>\n</details>\n",
        rows.collect::<String>()
    )
}

fn pareto_section(facts: &Figures) -> String {
    if facts.points.is_empty() {
        return String::new();
    }
    let passed = facts.points.len() - ranked(&facts.candidates).count();
    let caption = format!(
        "Every strategy of the ranking, and {passed} that were refused or passed over and were \
         costed for \
         this picture. Both axes are logarithmic; lettered strategies lie on the front.",
    );
    section(
        "Time against memory",
        &(figure(&pareto::figure(facts), &caption) + &ranking::pareto_table(facts)),
    )
}
