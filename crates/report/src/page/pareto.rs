//! Figure: time and memory of strategies.

use super::axis::{Scale, size_unit, time_unit};
use super::svg::{Anchor, Stroke, Svg, WIDTH, color};
use partita::figures::{Figures, Point};
use partita_space::{Bytes, Seconds};

const LEFT: f64 = 78.0;
const RIGHT: f64 = WIDTH - 30.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 380.0;

/// The Pareto front, by memory.
pub fn pareto(points: &[Point]) -> Vec<&Point> {
    partita::pareto(points, |point| (point.memory, point.seconds))
}

/// Letters of the points of the front: A to Z, then AA.
pub fn letter(index: usize) -> String {
    let last = char::from(b'A' + (index % 26) as u8);
    match index / 26 {
        0 => last.to_string(),
        more => letter(more - 1) + &last.to_string(),
    }
}

/// All costed strategies by memory and time.
pub fn figure(facts: &Figures) -> String {
    let front = pareto(&facts.points);
    let description = format!(
        "{} strategies by memory of the largest rank and time of a step; {} of them lie on the \
         front that no \
         other beats in both.",
        facts.points.len(),
        front.len()
    );
    let mut svg = Svg::new("front", "Time and memory", &description, BOTTOM + 46.0);
    let memories = facts.points.iter().map(|point| point.memory);
    let seconds = facts.points.iter().map(|point| point.seconds.0);
    let (Some(most), Some(least)) = (memories.clone().max(), memories.min()) else {
        svg.label((LEFT, 60.0), Anchor::Start, "No strategy could be costed.");
        return svg.finish();
    };
    let (slowest, fastest) = (
        seconds.clone().fold(0.0, f64::max),
        seconds.fold(f64::INFINITY, f64::min),
    );
    if fastest <= 0.0 || least.0 == 0 {
        svg.label((LEFT, 60.0), Anchor::Start, "The steps take no time.");
        return svg.finish();
    }
    let shows_limit = facts.memory.0 <= 4 * most.0;
    let widest = most.max(if shows_limit { facts.memory } else { most });
    let narrowest = least.min(if shows_limit { facts.memory } else { least });
    let (size, size_name) = size_unit(widest);
    let (time, time_name) = time_unit(Seconds(slowest));
    let bytes = |bytes: Bytes| bytes.0 as f64 / size;
    let x = Scale::logarithmic([bytes(narrowest), bytes(widest)], [LEFT, RIGHT]);
    let y = Scale::logarithmic([fastest / time, slowest / time], [BOTTOM, TOP]);
    y.draw_upward(
        &mut svg,
        LEFT,
        RIGHT,
        &format!("time of a step ({time_name})"),
    );
    x.draw_across(
        &mut svg,
        TOP,
        BOTTOM,
        &format!("memory of the largest rank ({size_name})"),
    );
    let at = |point: &Point| (x.at(bytes(point.memory)), y.at(point.seconds.0 / time));
    if shows_limit {
        let limit = x.at(bytes(facts.memory));
        svg.line(
            &[(limit, TOP), (limit, BOTTOM)],
            Stroke::dashed(color::BLACK, 2.0),
        );
        let text = format!("limit {}", facts.memory);
        svg.styled((limit, TOP - 6.0), Anchor::Middle, "strong", text);
    }
    svg.line(
        &steps(front.iter().map(|point| at(point))),
        Stroke::solid(color::ORANGE, 2.0),
    );
    for point in &facts.points {
        let tooltip = format!("{}: {}, {}", point.strategy, point.seconds, point.memory);
        if point.fits {
            svg.dot(at(point), 4.5, color::SKY, color::BLUE, &tooltip)
        } else {
            svg.cross(at(point), 4.5, color::VERMILLION, &tooltip)
        }
    }
    draw_letters(&mut svg, &front, &at);
    draw_key(&mut svg);
    svg.finish()
}

/// A line that goes right before it goes down.
pub fn steps(places: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut steps = Vec::new();
    for (right, up) in places {
        if let Some(&(_, before)) = steps.last() {
            steps.push((right, before));
        }
        steps.push((right, up));
    }
    steps
}

/// Letters beside the points of the front, unless they overlap.
fn draw_letters(svg: &mut Svg, front: &[&Point], at: &dyn Fn(&Point) -> (f64, f64)) {
    let mut taken: Vec<(f64, f64)> = Vec::new();
    for (index, point) in front.iter().enumerate() {
        let (x, y) = at(point);
        let places = [
            (-9.0, 13.0),
            (-9.0, -7.0),
            (9.0, 15.0),
            (-20.0, 5.0),
            (-9.0, 26.0),
            (10.0, -7.0),
        ];
        let is_free = |place: &(f64, f64)| {
            taken
                .iter()
                .all(|other| (place.0 - other.0).abs() > 13.0 || (place.1 - other.1).abs() > 13.0)
        };
        let mut places = places
            .into_iter()
            .map(|(right, down)| (x + right, y + down));
        if let Some(place) = places.find(is_free) {
            svg.styled(place, Anchor::Middle, "strong", letter(index));
            taken.push(place);
        }
    }
}

fn draw_key(svg: &mut Svg) {
    svg.dot((LEFT + 6.0, 14.0), 4.5, color::SKY, color::BLUE, "fits");
    svg.label((LEFT + 16.0, 18.5), Anchor::Start, "fits");
    svg.cross((LEFT + 66.0, 14.0), 4.5, color::VERMILLION, "does not fit");
    svg.label((LEFT + 76.0, 18.5), Anchor::Start, "does not fit");
    let x = LEFT + 180.0;
    svg.line(
        &[(x, 14.0), (x + 24.0, 14.0)],
        Stroke::solid(color::ORANGE, 2.0),
    );
    svg.label(
        (x + 30.0, 18.5),
        Anchor::Start,
        "front: no other is both faster and smaller",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_go_on_after_z() {
        assert_eq!([0, 25, 26].map(letter), ["A", "Z", "AA"]);
    }
}
