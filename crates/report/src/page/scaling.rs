//! Figure: samples per second by number of ranks.

use super::axis::{Scale, plain, time_unit};
use super::palette;
use super::svg::{Anchor, Stroke, Svg, WIDTH, color};
use partita::figures::{Count, Figures};
use partita_oracle::Prediction;
use partita_oracle::simulate::Category;
use partita_space::Seconds;

const LEFT: f64 = 78.0;
const RIGHT: f64 = WIDTH - 20.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 330.0;
const NOTHING: &str = "no strategy fits";

/// Samples per second by number of ranks, both logarithmic.
pub fn curves(facts: &Figures) -> String {
    let description = format!(
        "Predicted samples per second of {} with mini-batches of {} on {} for numbers of ranks \
         from 1 to {}: the best plan, data parallelism alone, and the ideal, in proportion to \
         the first number that fits.",
        facts.model, facts.batch, facts.machine, facts.ranks
    );
    let mut svg = Svg::new(
        "scaling",
        "Samples per second by number of ranks",
        &description,
        BOTTOM + 46.0,
    );
    let best: Vec<(f64, f64)> = facts.scaling.iter().filter_map(best_of).collect();
    let data = facts.scaling.iter().filter_map(|count| {
        let data = count.data.as_ref()?;
        Some((count.ranks as f64, data.samples_per_second?, data.fits))
    });
    let data: Vec<(f64, f64, bool)> = data.filter(|point| point.1 > 0.0).collect();
    let ideal = ideal(&best, facts.ranks as f64);
    let all = best.iter().map(|point| point.1);
    let all = all.chain(data.iter().map(|point| point.1));
    let all = all.chain(ideal.iter().map(|point| point.1));
    let (least, most) = all.fold((f64::INFINITY, 0.0f64), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    if most == 0.0 {
        svg.label(
            (LEFT, 60.0),
            Anchor::Start,
            "No strategy fits, steps take no time, or the search ended before.",
        );
        return svg.finish();
    }
    let y = Scale::logarithmic([least, most], [BOTTOM, TOP]);
    let x = Scale::logarithmic([1.0, facts.ranks as f64], [LEFT, RIGHT]);
    y.draw_upward(&mut svg, LEFT, RIGHT, "samples per second");
    draw_counts(&mut svg, &x, facts);
    let at = |x_value: f64, y_value: f64| (x.at(x_value), y.at(y_value));
    let line = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
        points.iter().map(|point| at(point.0, point.1)).collect()
    };
    svg.line(&line(&ideal), Stroke::dashed(color::QUIET, 1.5));
    let split: Vec<(f64, f64)> = data.iter().map(|point| (point.0, point.1)).collect();
    svg.line(&line(&split), Stroke::solid(color::VERMILLION, 2.0));
    svg.line(&line(&best), Stroke::solid(color::BLUE, 3.0));
    for &(ranks, rate, fits) in &data {
        let fill = if fits { color::VERMILLION } else { "#ffffff" };
        let word = if fits { "" } else { ", does not fit in memory" };
        let tooltip = format!("data={ranks}: {rate:.2} samples/s{word}");
        svg.dot(at(ranks, rate), 6.0, fill, color::VERMILLION, &tooltip);
    }
    for (count, &(ranks, rate)) in facts
        .scaling
        .iter()
        .filter(|one| best_of(one).is_some())
        .zip(&best)
    {
        let strategy = count.best.as_ref().map_or("", |(strategy, _)| strategy);
        let tooltip = format!("{ranks} ranks, {strategy}: {rate:.2} samples/s");
        svg.dot(at(ranks, rate), 4.0, color::BLUE, color::BLUE, &tooltip);
    }
    draw_key(&mut svg);
    if facts.scaling.iter().any(|count| count.best.is_none()) {
        svg.cross((LEFT + 592.0, 14.0), 4.5, color::BLACK, NOTHING);
        svg.label((LEFT + 602.0, 18.5), Anchor::Start, NOTHING);
    }
    svg.finish()
}

fn best_of(count: &Count) -> Option<(f64, f64)> {
    let (_, prediction) = count.best.as_ref()?;
    let rate = prediction.samples_per_second;
    (rate > 0.0).then_some((count.ranks as f64, rate))
}

/// Ideal scaling from the first point.
fn ideal(best: &[(f64, f64)], ranks: f64) -> Vec<(f64, f64)> {
    let first = best.first().copied();
    let ends = first.map(|(first, rate)| [(first, rate), (ranks, rate * ranks / first)]);
    ends.into_iter().flatten().collect()
}

fn draw_counts(svg: &mut Svg, x: &Scale, facts: &Figures) {
    for count in &facts.scaling {
        let place = x.at(count.ranks as f64);
        svg.line(
            &[(place, TOP), (place, BOTTOM)],
            Stroke::solid(color::FAINT, 1.0),
        );
        svg.label((place, BOTTOM + 17.0), Anchor::Middle, count.ranks);
        if count.best.is_none() {
            svg.cross((place, BOTTOM - 8.0), 4.5, color::BLACK, NOTHING);
        }
    }
    svg.line(
        &[(LEFT, BOTTOM), (RIGHT, BOTTOM)],
        Stroke::solid(color::BLACK, 1.0),
    );
    svg.label(
        ((LEFT + RIGHT) / 2.0, BOTTOM + 38.0),
        Anchor::Middle,
        "ranks",
    );
}

fn draw_key(svg: &mut Svg) {
    let entries = [
        (Stroke::solid(color::BLUE, 3.0), "best plan", 110.0),
        (
            Stroke::solid(color::VERMILLION, 2.0),
            "data parallelism alone",
            190.0,
        ),
        (Stroke::dashed(color::QUIET, 1.5), "ideal", 80.0),
    ];
    let mut x = LEFT;
    for (stroke, name, width) in entries {
        svg.line(&[(x, 14.0), (x + 24.0, 14.0)], stroke);
        svg.label((x + 30.0, 18.5), Anchor::Start, name);
        x += width;
    }
    svg.dot(
        (x + 6.0, 14.0),
        6.0,
        "#ffffff",
        color::VERMILLION,
        "does not fit in memory",
    );
    svg.label((x + 18.0, 18.5), Anchor::Start, "does not fit in memory");
}

/// Rank time per sample by category, for the best plan of each number of ranks.
pub fn bars(facts: &Figures) -> String {
    let description = "One bar for each number of ranks: time of a step by category of the \
         critical path, times the ranks, by the samples of the mini-batch. Bars of equal height \
         would be ideal scaling.";
    let mut svg = Svg::new(
        "breakdown",
        "Where the time goes, by number of ranks",
        description,
        0.0,
    );
    let legend = svg.legend(LEFT, 4.0, &palette::entries());
    let (top, bottom) = (legend + 34.0, legend + 314.0);
    svg.grow(bottom + 46.0);
    let cost = |count: &Count, prediction: &Prediction, category| {
        prediction.breakdown.of(category).0 * count.ranks as f64 / facts.batch as f64
    };
    let whole = facts.scaling.iter().filter_map(|count| {
        let (_, prediction) = count.best.as_ref()?;
        Some(
            Category::ALL
                .map(|one| cost(count, prediction, one))
                .iter()
                .sum(),
        )
    });
    let most = whole.fold(0.0, f64::max);
    if most == 0.0 {
        svg.label(
            (LEFT, top),
            Anchor::Start,
            "No strategy fits, steps take no time, or the search ended before.",
        );
        return svg.finish();
    }
    let (unit, unit_name) = time_unit(Seconds(most));
    let y = Scale::linear(most / unit, [bottom, top]);
    y.draw_upward(
        &mut svg,
        LEFT,
        RIGHT,
        &format!("time × ranks / samples ({unit_name})"),
    );
    let pitch = (RIGHT - LEFT) / facts.scaling.len() as f64;
    let width = (0.62 * pitch).min(90.0);
    for (index, count) in facts.scaling.iter().enumerate() {
        let middle = LEFT + pitch * (index as f64 + 0.5);
        svg.label((middle, bottom + 17.0), Anchor::Middle, count.ranks);
        let Some((strategy, prediction)) = &count.best else {
            svg.cross((middle, bottom - 8.0), 4.5, color::BLACK, NOTHING);
            continue;
        };
        let scaled = |category| cost(count, prediction, category) / unit;
        let parts = Category::ALL.map(|category| (category, scaled(category)));
        draw_bar(
            &mut svg,
            [middle, width],
            &y,
            &parts,
            (count.ranks, strategy, prediction),
        );
    }
    svg.line(
        &[(LEFT, bottom), (RIGHT, bottom)],
        Stroke::solid(color::BLACK, 1.0),
    );
    let title = "ranks (above each bar: time of a step)";
    svg.label(((LEFT + RIGHT) / 2.0, bottom + 38.0), Anchor::Middle, title);
    svg.finish()
}

/// A bar with the time of its step above.
fn draw_bar(
    svg: &mut Svg,
    [middle, width]: [f64; 2],
    y: &Scale,
    parts: &[(Category, f64)],
    (ranks, strategy, prediction): (usize, &str, &Prediction),
) {
    let mut sum = 0.0;
    for &(category, part) in parts {
        let next = sum + part;
        if next > sum {
            let seconds = prediction.breakdown.of(category);
            let tooltip = format!("{ranks} ranks, {strategy}: {category}, {seconds} a step");
            let (top, height) = (y.at(next), y.at(sum) - y.at(next));
            let frame = [middle - width / 2.0, top, width, height];
            svg.bar(frame, palette::of(category), &tooltip);
        }
        sum = next;
    }
    let (above, step) = (y.at(sum) - 5.0, prediction.iteration_seconds);
    svg.styled((middle, above), Anchor::Middle, "small over", step);
}

/// Parallel efficiency.
pub fn efficiency(facts: &Figures, count: &Count) -> Option<String> {
    let (first, rate) = facts.scaling.iter().find_map(best_of)?;
    let (ranks, reached) = best_of(count)?;
    let share = reached / rate * first / ranks;
    Some(format!("{} %", plain((1000.0 * share).round() / 10.0)))
}
