//! Tables of the strategies of a plan.

use super::pareto::{letter, pareto};
use super::scaling::efficiency;
use super::svg::escape;
use crate::text::ties_text;
use partita::figures::{Figures, ranked};
use partita::ties::{Sureness, sureness};
use partita_oracle::Prediction;

/// Rows of the ranking that are not collapsed.
const ROWS_MAX: usize = 12;

const HEAD: &str = "<thead><tr><th class=\"number\">#</th><th class=\"number\">step</th>\
    <th class=\"number\">90 % between</th><th class=\"number\">fastest</th>\
    <th class=\"number\">samples/s</th><th class=\"number\">memory</th><th>strategy</th></tr></thead>";

/// The candidates that fit, best first.
pub fn table(facts: &Figures) -> String {
    let sure = sureness(ranked(&facts.candidates).map(|(_, prediction)| prediction));
    let ties = sure.iter().take_while(|one| one.is_tie).count();
    let probability = sure.first().map(|first| first.probability_fastest);
    let rows: Vec<String> = (ranked(&facts.candidates).zip(sure).enumerate())
        .map(|(number, ((candidate, prediction), sure))| {
            let strategy = candidate.strategy.to_string();
            row(number + 1, &strategy, prediction, sure)
        })
        .collect();
    if rows.is_empty() {
        return format!(
            "<p>No strategy fits {} ranks with {} each.</p>\n",
            facts.ranks, facts.memory
        );
    }
    let (first, rest) = rows.split_at(rows.len().min(ROWS_MAX));
    let line = ties_text(ties, rows.len(), probability.unwrap_or_default());
    let line = line.map_or(String::new(), |line| {
        format!("<p id=\"ties\">{}.</p>\n", escape(&line))
    });
    let mut text = format!(
        "{line}<table id=\"ranking\">{HEAD}<tbody>\n{}</tbody></table>\n",
        first.concat()
    );
    if !rest.is_empty() {
        text.push_str(&format!(
            "<details><summary>{} more that fit</summary>\n<table>{HEAD}<tbody>\n{}</tbody></table>\n\
             </details>\n",
            rest.len(),
            rest.concat()
        ));
    }
    text
}

fn row(number: usize, strategy: &str, prediction: &Prediction, sure: Sureness) -> String {
    let between = prediction.interval.as_ref().map(|interval| {
        let ends = [interval.low_seconds, interval.high_seconds];
        ends.map(|end| datum(end.0, &end.to_string())).join(" – ")
    });
    format!(
        "<tr><td class=\"number\">{number}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
         <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
         <td><code>{}</code></td></tr>\n",
        datum(
            prediction.iteration_seconds.0,
            &prediction.iteration_seconds.to_string()
        ),
        between.unwrap_or_default(),
        datum(
            sure.probability_fastest,
            &format!("{:.0} %", 100.0 * sure.probability_fastest)
        ),
        datum(
            prediction.samples_per_second,
            &format!("{:.2}", prediction.samples_per_second)
        ),
        datum(
            prediction.memory_bytes_max.0,
            &prediction.memory_bytes_max.to_string()
        ),
        escape(strategy)
    )
}

/// A rounded number, with the exact one in SI base units as data.
fn datum(exact: impl std::fmt::Display, text: &str) -> String {
    format!("<data value=\"{exact}\">{}</data>", escape(text))
}

/// The refused candidates with their reasons.
pub fn refused(facts: &Figures) -> String {
    let refused = facts.candidates.iter().filter_map(|candidate| {
        let reason = candidate.reason.as_ref()?;
        let strategy = escape(&candidate.strategy.to_string());
        Some(format!(
            "<tr><td><code>{strategy}</code></td><td>{}</td></tr>\n",
            escape(reason)
        ))
    });
    let rows: Vec<String> = refused.collect();
    if rows.is_empty() {
        return String::new();
    }
    format!(
        "<details id=\"refused\"><summary>{} not chosen, with the reasons</summary>\n<table><thead><tr>\
         <th>strategy</th><th>reason</th></tr></thead><tbody>\n{}</tbody></table>\n</details>\n",
        rows.len(),
        rows.concat()
    )
}

/// The data of the scaling figure.
pub fn counts(facts: &Figures) -> String {
    let rows = facts.scaling.iter().map(|count| {
        let none = || "no strategy fits".to_owned();
        let (rate, share, strategy) = match &count.best {
            Some((strategy, prediction)) => (
                datum(prediction.samples_per_second, &format!("{:.2}", prediction.samples_per_second)),
                efficiency(facts, count).unwrap_or_default(),
                format!("<code>{}</code>", escape(strategy)),
            ),
            None => (none(), String::new(), String::new()),
        };
        let data = match &count.data {
            None => "more ranks than samples".to_owned(),
            Some(data) => {
                let rate = data.samples_per_second;
                let rate = rate.map(|rate| datum(rate, &format!("{rate:.2}"))).unwrap_or_default();
                let misfit = if data.fits { String::new() } else { format!(" needs {}", data.memory) };
                rate + &misfit
            }
        };
        format!(
            "<tr><td class=\"number\">{}</td><td class=\"number\">{rate}</td><td class=\"number\">{share}</td>\
             <td class=\"number\">{data}</td><td>{strategy}</td></tr>\n",
            count.ranks
        )
    });
    format!(
        "<details><summary>Numbers</summary>\n<table id=\"counts\"><thead><tr><th class=\"number\">ranks</th>\
         <th class=\"number\">samples/s</th><th class=\"number\">of the ideal</th>\
         <th class=\"number\">data parallelism alone</th><th>best plan</th></tr></thead><tbody>\n{}</tbody>\
         </table>\n</details>\n",
        rows.collect::<String>()
    )
}

/// The strategies of the Pareto front by their letters.
pub fn pareto_table(facts: &Figures) -> String {
    let rows = pareto(&facts.points).into_iter().enumerate().map(|(index, point)| {
        let fits = if point.fits { "yes" } else { "no" };
        format!(
            "<tr><td><strong>{}</strong></td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td>{fits}</td><td><code>{}</code></td></tr>\n",
            letter(index),
            datum(point.memory.0, &point.memory.to_string()),
            datum(point.seconds.0, &point.seconds.to_string()),
            escape(&point.strategy)
        )
    });
    format!(
        "<table id=\"front-table\"><thead><tr><th></th><th class=\"number\">memory</th>\
         <th class=\"number\">step</th><th>fits</th><th>strategy</th></tr></thead><tbody>\n{}</tbody></table>\n",
        rows.collect::<String>()
    )
}
