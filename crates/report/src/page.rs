//! A plan as one self-contained page of HTML with tables and SVG figures.

mod axis;
mod memory;
mod palette;
mod pareto;
mod partition;
mod ranking;
mod scaling;
mod svg;
mod timeline;
mod tuning;

pub(crate) use axis::Scale;
pub(crate) use svg::{Anchor, Stroke, Svg, WIDTH, color};

use crate::text::basis;
use partita::figures::{Best, Figures, ranked};
use partition::Partition;
use svg::escape;
pub use tuning::tuning_page;

const STYLE: &str = include_str!("page/style.css");

/// Head of a page.
pub const DOCTYPE: &str = "<!DOCTYPE html>";

/// Most regions that are listed.
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
    let title = format!("How to train {title}");
    html(&title, &sections.concat(), "All times are predictions.")
}

/// A page with a title, whose text is escaped already.
fn html(title: &str, content: &str, note: &str) -> String {
    format!(
        "{DOCTYPE}\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta \
         charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{content}</main>\n<footer><p>Written by partita {}. {note}</p></footer>\n\
         </body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    )
}

fn section(title: &str, content: &str) -> String {
    format!(
        "<section>\n<h2>{}</h2>\n{content}</section>\n",
        escape(title)
    )
}

/// A figure with a caption.
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
            ("program", prediction.digest.clone().unwrap_or_default()),
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
        ", input time ignored"
    } else {
        ""
    };
    let first = [
        ("model", facts.model.clone()),
        ("machine", format!("{}{reading}", facts.machine)),
        ("ranks", facts.ranks.to_string()),
        ("mini-batch", format!("{} samples", facts.batch)),
        ("memory limit", format!("{} per rank", facts.memory)),
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
        "Strong scaling: samples per second with the same mini-batch. The best plan for each number of \
         ranks, data parallelism alone as long as every rank has a sample, and ideal scaling from the \
         smallest number of ranks on which a strategy fits. Both axes are logarithmic.",
    );
    let bars = figure(
        &scaling::bars(facts),
        "Rank time per sample, by category of the critical path of the best plan. Under ideal scaling \
         all bars have the same height. A cross: no strategy fits.",
    );
    section("Scaling", &(curves + &ranking::counts(facts) + &bars))
}

fn memory_section(facts: &Figures) -> String {
    if facts.itemized.is_empty() {
        return String::new();
    }
    let caption = format!(
        "Peak memory of the largest rank by purpose, for the best strategies of the ranking, data \
         parallelism alone, and some strategies that do not fit. Halos are received in place; \
         internal buffers of a communication library are not counted. The limit of a rank is {}.",
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
            "Stages and their ranks; micro-batches are scheduled by {}.",
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
        "A simulated step of the best strategy, for some ranks with four lanes each. Concurrent messages \
         and collectives are drawn in several rows; they include waiting for other ranks.",
    );
    section("Partitioning", &split) + &section("Timeline of a step", &timeline)
}

fn partition_figure(partition: &Partition) -> String {
    let others = match partition.sample_parts {
        1 => String::new(),
        parts => format!(
            " The mini-batch is split into {parts} parts; the samples of the other parts are partitioned the \
             same way."
        ),
    };
    let halo = match partition::halo_words(&partition.halo) {
        words if words.is_empty() => "The input has no halo.".to_owned(),
        words => format!(
            "Hatched: the halo of the input, {words} positions (before + after), drawn at least two points \
             wide."
        ),
    };
    let caption = format!(
        "The partition of the input over the ranks of the first samples; ranks named together are \
         replicas. {halo}{others}"
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
        more => format!("<p>{more} more regions are partitioned the same way.</p>\n"),
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
         <th class=\"number\">positions before + after</th><th>tensors</th></tr></thead><tbody>\n{}</tbody>\
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
        "Every strategy of the ranking, and {passed} that were refused or pruned and costed for this figure. \
         Both axes are logarithmic. Strategies with letters are on the Pareto front.",
    );
    section(
        "Time and memory",
        &(figure(&pareto::figure(facts), &caption) + &ranking::pareto_table(facts)),
    )
}
