//! Page about tuned kernels: time against workspace.

use super::axis::{Scale, size_unit, time_unit};
use super::pareto::steps;
use super::svg::{Anchor, Stroke, Svg, WIDTH, color, escape};
use super::{figure, html, section};
use partita::{Tuned, TunedKernel, TunedPoint};
use partita_space::{Bytes, Seconds};
use std::collections::BTreeSet;

const LEFT: f64 = 78.0;
const RIGHT: f64 = WIDTH - 30.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 260.0;
/// What stands for a configuration without workspace on a logarithmic axis.
const LEAST: Bytes = Bytes(1024);

/// The page.
pub fn tuning_page(tuned: &Tuned) -> String {
    let title = escape(&format!(
        "Convolutions of {}, {} samples, {}",
        tuned.model, tuned.batch, tuned.strategy
    ));
    let whole = section(
        "The step under limits of the workspace",
        &steps_table(tuned),
    );
    let mut seen = BTreeSet::new();
    let mut figures = String::new();
    for kernel in &tuned.kernels {
        // Equal kernels have equal curves.
        let is_new = seen.insert(points_text(&kernel.frontier));
        if is_new && kernel.frontier.len() > 1 {
            figures.push_str(&curve(kernel));
        }
    }
    let each = section("Time against workspace", &figures);
    html(
        &title,
        &(whole + &each),
        "All times were measured on this machine.",
    )
}

fn steps_table(tuned: &Tuned) -> String {
    let rows = tuned.steps.iter().map(|step| {
        format!(
            "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            escape(&step.workspace),
            step.convolution_seconds,
            step.step_seconds,
            step.workspace_bytes_max,
            step.memory_bytes
        )
    });
    format!(
        "<table><thead><tr><th>limit</th><th>convolutions</th><th>step</th><th>largest workspace</th>\
         <th>memory</th></tr></thead><tbody>\n{}</tbody></table>\n",
        rows.collect::<String>()
    )
}

fn points_text(points: &[TunedPoint]) -> String {
    let text = |point: &TunedPoint| format!("{} {:?} ", point.configuration, point.seconds);
    points.iter().map(text).collect()
}

/// The frontier of one convolution.
fn curve(kernel: &TunedKernel) -> String {
    let name = format!("{} {}", kernel.layer, kernel.kernel);
    let points = &kernel.frontier;
    let description = format!("{} configurations of {name}.", points.len());
    let id: String = name
        .chars()
        .map(|c| if c.is_alphanumeric() { c } else { '-' })
        .collect();
    let mut svg = Svg::new(&id, &name, &description, BOTTOM + 46.0);
    let bytes = |point: &TunedPoint| point.workspace_bytes.max(LEAST);
    let most = points.iter().map(bytes).max().unwrap_or(LEAST);
    let least = points.iter().map(bytes).min().unwrap_or(LEAST);
    let seconds = || points.iter().map(|point| point.seconds.0);
    let slowest = seconds().fold(0.0, f64::max);
    let fastest = seconds().fold(f64::INFINITY, f64::min);
    let (size, size_name) = size_unit(most);
    let (time, time_name) = time_unit(Seconds(slowest));
    let scaled = |bytes: Bytes| bytes.0 as f64 / size;
    let x = Scale::logarithmic([scaled(least), scaled(most)], [LEFT, RIGHT]);
    let y = Scale::logarithmic([fastest / time, slowest / time], [BOTTOM, TOP]);
    y.draw_upward(&mut svg, LEFT, RIGHT, &format!("time ({time_name})"));
    x.draw_across(&mut svg, TOP, BOTTOM, &format!("workspace ({size_name})"));
    let at = |point: &TunedPoint| (x.at(scaled(bytes(point))), y.at(point.seconds.0 / time));
    let line = steps(points.iter().map(at));
    svg.line(&line, Stroke::solid(color::ORANGE, 2.0));
    for point in points {
        let tooltip = format!(
            "{}: {}, {}",
            point.configuration, point.seconds, point.workspace_bytes
        );
        svg.dot(at(point), 4.5, color::SKY, color::BLUE, &tooltip);
    }
    if let Some(choice) = &kernel.choice {
        let (right, up) = at(choice);
        svg.styled(
            (right, up - 8.0),
            Anchor::Middle,
            "strong",
            choice.configuration.clone(),
        );
    }
    figure(
        &svg.finish(),
        &format!("{name}: the configurations that no other beats in time and workspace."),
    )
}
