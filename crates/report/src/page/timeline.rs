//! Figure: the timeline of a step.

use super::axis::{Scale, time_unit};
use super::palette;
use super::svg::{Anchor, Stroke, Svg, WIDTH, color};
use partita::figures::Best;
use partita_oracle::simulate::Category;
use partita_program::{Body, Lane};
use partita_run::Trace;
use partita_space::Seconds;

/// Most ranks that are shown.
const RANKS_MAX: usize = 4;
/// Most concurrent tasks of a lane that are drawn in rows of their own; others are drawn over the last.
const ROWS_MAX: usize = 3;
const LEFT: f64 = 186.0;
const RIGHT: f64 = WIDTH - 16.0;
const LANE: f64 = 22.0;
/// Tasks of a category that are narrower than this are merged and have no tooltip.
const FINE: f64 = 0.5;

/// A bar of one color in a row of a lane.
struct Bar {
    start: f64,
    end: f64,
    row: usize,
    category: Category,
    tooltip: String,
}

/// The lanes of some ranks over a step.
pub fn figure(best: &Best) -> String {
    let simulation = &best.simulation;
    let chosen = spread(simulation.participants.len(), RANKS_MAX);
    let description = format!(
        "What {} of the ranks of {} do in a step of {}, in the lanes compute, exchange, \
         collective and io, by the simulator.",
        chosen.len(),
        best.strategy,
        simulation.makespan
    );
    let mut svg = Svg::new("timeline", "Timeline of a step", &description, 0.0);
    let top = 12.0 + svg.legend(LEFT, 4.0, &palette::entries());
    let (unit, unit_name) = time_unit(simulation.makespan);
    let most = (simulation.makespan.0 / unit).max(f64::MIN_POSITIVE);
    let x = Scale::exact(most, [LEFT, RIGHT]);
    let block = 4.0 * LANE + 12.0;
    let bottom = top + block * chosen.len() as f64;
    x.draw_across(
        &mut svg,
        top,
        bottom,
        &format!("time from the start of the step ({unit_name})"),
    );
    for (index, &at) in chosen.iter().enumerate() {
        let participant = simulation.participants[at];
        let body = &best.program.bodies[participant.body as usize];
        let y = top + block * index as f64 + 6.0;
        svg.styled(
            (8.0, y + 14.0),
            Anchor::Start,
            "strong",
            format!("rank {}", participant.rank),
        );
        if participant.ranks > 1 {
            let alike = format!("and {} like it", participant.ranks - 1);
            svg.styled((8.0, y + 31.0), Anchor::Start, "small", alike);
        }
        for (number, lane) in Lane::ALL.into_iter().enumerate() {
            let y = y + LANE * number as f64;
            svg.styled((LEFT - 8.0, y + 14.0), Anchor::End, "small", lane.name());
            svg.area([LEFT, y + 1.0, RIGHT - LEFT, LANE - 2.0], "#f4f4f4");
            let bars = bars(body, &simulation.traces[at], lane, &x, unit);
            draw(&mut svg, &bars, y + 1.0);
        }
        let y = y + 4.0 * LANE + 6.0;
        svg.line(&[(8.0, y), (RIGHT, y)], Stroke::solid(color::FAINT, 1.0));
    }
    svg.grow(bottom + 46.0);
    svg.finish()
}

/// At most `most` numbers below `all`, evenly spaced, including the first and the last.
fn spread(all: usize, most: usize) -> Vec<usize> {
    if all <= most {
        (0..all).collect()
    } else {
        (0..most)
            .map(|index| index * (all - 1) / (most - 1))
            .collect()
    }
}

fn bars(body: &Body, traces: &[Trace], lane: Lane, x: &Scale, unit: f64) -> Vec<Bar> {
    let mut events: Vec<_> = traces.iter().flat_map(|trace| &trace.events).collect();
    events.retain(|event| {
        body.tasks[event.task.0 as usize].work.lane() == lane && event.end > event.start
    });
    events.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
    let mut ends: Vec<f64> = Vec::new();
    let mut bars: Vec<Bar> = Vec::new();
    for event in events {
        let task = &body.tasks[event.task.0 as usize];
        let (start, end) = (x.at(event.start.0 / unit), x.at(event.end.0 / unit));
        let free = ends.iter().position(|&last| last <= start + 1e-9);
        let row = free.unwrap_or(ends.len().min(ROWS_MAX - 1));
        match ends.get_mut(row) {
            Some(last) => *last = last.max(end),
            None => ends.push(end),
        }
        let category = Category::of(task);
        let before = bars.iter_mut().rev().find(|one| one.row == row);
        if let Some(before) = before
            && before.category == category
            && start - before.end < FINE / 2.0
            && (end - start < FINE || before.end - before.start < FINE)
        {
            before.end = before.end.max(end);
            before.tooltip.clear();
            continue;
        }
        let (layer, work) = (&task.origin.layer, task.work.name());
        let seconds = Seconds(event.end.0 - event.start.0);
        bars.push(Bar {
            start,
            end,
            row,
            category,
            tooltip: format!("{layer} {work}, {seconds}"),
        });
    }
    bars
}

fn draw(svg: &mut Svg, bars: &[Bar], y: f64) {
    let rows = bars.iter().map(|one| one.row + 1).max().unwrap_or(1);
    let height = (LANE - 2.0) / rows as f64;
    for one in bars {
        let frame = [
            one.start,
            y + height * one.row as f64,
            (one.end - one.start).max(0.3),
            height,
        ];
        if one.end - one.start < 2.0 {
            svg.area(frame, palette::of(one.category))
        } else {
            svg.bar(frame, palette::of(one.category), &one.tooltip)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_and_last_are_shown() {
        assert_eq!(spread(3, 4), [0, 1, 2]);
        assert_eq!(spread(10, 4), [0, 3, 6, 9]);
    }
}
