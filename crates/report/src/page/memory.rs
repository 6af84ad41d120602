//! Figure: the memory of the largest rank by purpose.

use super::axis::{Scale, size_unit};
use super::svg::{Anchor, Stroke, Svg, WIDTH, color, shortened};
use partita::figures::{Figures, ranked};
use partita_run::Footprint;
use partita_space::Bytes;

/// Colors of [`Footprint::items`], without the records of a trace, which a plan does not have.
const COLORS: [&str; 14] = [
    color::BLUE,
    color::SKY,
    color::ORANGE,
    color::YELLOW,
    color::GREEN,
    color::VERMILLION,
    color::PURPLE,
    color::STONE,
    color::GRAY,
    color::BLACK,
    color::QUIET,
    color::BROWN,
    color::OLIVE,
    color::FAINT,
];

/// A strategy with its rank in the ranking, if it has one.
fn name(facts: &Figures, strategy: &str) -> String {
    let mut ranking = ranked(&facts.candidates);
    match ranking.position(|(candidate, _)| candidate.strategy.to_string() == strategy) {
        Some(at) => format!("{} #{}", shortened(strategy, 32), at + 1),
        None => shortened(strategy, 36),
    }
}

/// A bar for each strategy, against the limit.
pub fn figure(facts: &Figures) -> String {
    let sums: Vec<Bytes> = facts
        .itemized
        .iter()
        .map(|(_, footprint)| footprint.total())
        .collect();
    let most = sums.iter().copied().max().unwrap_or_default();
    // A limit far beyond all bars would make them invisible.
    let shows_limit = facts.memory.0 <= 4 * most.0;
    let top = most.max(if shows_limit { facts.memory } else { most });
    let (unit, unit_name) = size_unit(top);
    let (left, right, row) = (300.0, WIDTH - 80.0, 26.0);
    let description = format!(
        "One bar for each of {} strategies: peak memory of the largest rank, by \
         what it \
         is for; a rank may fill {}.",
        facts.itemized.len(),
        facts.memory
    );
    let mut svg = Svg::new("memory", "Memory of the largest rank", &description, 0.0);
    let names = Footprint::default().items().map(|(name, _)| name);
    let entries = COLORS.into_iter().zip(names.map(str::to_owned));
    let entries: Vec<(&str, String)> = entries.take(COLORS.len() - 1).collect();
    let bars_top = 8.0 + svg.legend(10.0, 4.0, &entries) + 18.0;
    let bottom = bars_top + row * facts.itemized.len() as f64;
    let scale = Scale::linear(top.0 as f64 / unit, [left, right]);
    scale.draw_across(
        &mut svg,
        bars_top,
        bottom,
        &format!("memory of the largest rank ({unit_name})"),
    );
    for (index, (strategy, footprint)) in facts.itemized.iter().enumerate() {
        let y = bars_top + row * index as f64 + 4.0;
        svg.styled(
            (left - 8.0, y + 13.0),
            Anchor::End,
            "code",
            name(facts, strategy),
        );
        draw_bar(&mut svg, &scale, [y, row - 8.0], unit, strategy, footprint);
    }
    let limit = format!("limit {}", facts.memory);
    if shows_limit {
        let x = scale.at(facts.memory.0 as f64 / unit);
        let line = [(x, bars_top - 4.0), (x, bottom)];
        svg.line(&line, Stroke::dashed(color::BLACK, 2.0));
        svg.styled((x, bars_top - 9.0), Anchor::Middle, "strong", limit);
    } else {
        let beyond = format!("{limit} →");
        svg.styled((WIDTH - 8.0, bars_top - 9.0), Anchor::End, "strong", beyond);
    }
    for (index, sum) in sums.iter().enumerate() {
        let y = bars_top + row * index as f64 + 17.0;
        let x = scale.at(sum.0 as f64 / unit) + 5.0;
        svg.styled((x, y), Anchor::Start, "small over", sum);
    }
    svg.grow(bottom + 46.0);
    svg.finish()
}

fn draw_bar(
    svg: &mut Svg,
    scale: &Scale,
    [top, height]: [f64; 2],
    unit: f64,
    strategy: &str,
    footprint: &Footprint,
) {
    let mut start = 0.0;
    for (color, (name, bytes)) in COLORS.into_iter().zip(footprint.items()) {
        let end = start + bytes.0 as f64 / unit;
        if bytes.0 > 0 {
            let frame = [
                scale.at(start),
                top,
                scale.at(end) - scale.at(start),
                height,
            ];
            let tooltip = format!("{strategy}: {name}, {bytes}");
            svg.bar(frame, color, &tooltip);
        }
        start = end;
    }
}
