//! Axes of figures, linear and logarithmic.

use super::svg::{Anchor, Stroke, Svg, color};
use partita_space::{Bytes, Seconds, Unit, UnitTable};

/// Maps values to positions in a figure.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The least and the greatest value.
    values: [f64; 2],
    /// Their positions.
    places: [f64; 2],
    is_logarithmic: bool,
}

impl Scale {
    /// A linear axis from 0 to a round number above `most`.
    pub fn linear(most: f64, places: [f64; 2]) -> Self {
        let step = round_step(most);
        let top = (most / step).ceil().max(1.0) * step;
        Self {
            values: [0.0, top],
            places,
            is_logarithmic: false,
        }
    }

    /// A linear axis from 0 to exactly `most`.
    pub fn exact(most: f64, places: [f64; 2]) -> Self {
        Self {
            values: [0.0, most],
            places,
            is_logarithmic: false,
        }
    }

    /// A logarithmic axis a little beyond both values, which are positive.
    pub fn logarithmic([least, most]: [f64; 2], places: [f64; 2]) -> Self {
        assert!(
            0.0 < least && least <= most,
            "no logarithm from {least} to {most}"
        );
        let margin = (most / least).powf(0.06).max(1.12);
        Self {
            values: [least / margin, most * margin],
            places,
            is_logarithmic: true,
        }
    }

    /// The position of a value.
    pub fn at(&self, value: f64) -> f64 {
        let ([least, most], [start, end]) = (self.values, self.places);
        let part = if self.is_logarithmic {
            (value / least).ln() / (most / least).ln()
        } else {
            (value - least) / (most - least)
        };
        start + part * (end - start)
    }

    /// Ticks at round values, with their labels.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let [least, most] = self.values;
        let values: Vec<f64> = if self.is_logarithmic {
            round_ratios(least, most)
        } else {
            let step = round_step(most);
            let count = (most / step + 1e-9) as usize;
            (0..=count).map(|tick| tick as f64 * step).collect()
        };
        values
            .into_iter()
            .map(|value| (value, plain(value)))
            .collect()
    }

    /// Draws a vertical axis at `left` with its title, and grid lines up to `right`.
    pub fn draw_upward(&self, svg: &mut Svg, left: f64, right: f64, title: &str) {
        for (value, text) in self.ticks() {
            let y = self.at(value);
            svg.line(&[(left, y), (right, y)], Stroke::solid(color::FAINT, 1.0));
            svg.label((left - 6.0, y + 4.0), Anchor::End, text);
        }
        let [start, end] = self.places;
        svg.line(
            &[(left, start), (left, end)],
            Stroke::solid(color::BLACK, 1.0),
        );
        svg.upward((left - 52.0, (start + end) / 2.0), title);
    }

    /// Draws a horizontal axis at `bottom` with its title, and grid lines up to `top`.
    pub fn draw_across(&self, svg: &mut Svg, top: f64, bottom: f64, title: &str) {
        let mut free = f64::NEG_INFINITY;
        for (value, text) in self.ticks() {
            let x = self.at(value);
            svg.line(&[(x, top), (x, bottom)], Stroke::solid(color::FAINT, 1.0));
            let half = 4.0 * text.chars().count() as f64;
            if x - half > free {
                svg.label((x, bottom + 17.0), Anchor::Middle, text);
                free = x + half;
            }
        }
        let [start, end] = self.places;
        svg.line(
            &[(start, bottom), (end, bottom)],
            Stroke::solid(color::BLACK, 1.0),
        );
        svg.label(((start + end) / 2.0, bottom + 37.0), Anchor::Middle, title);
    }
}

/// Step of about five round ticks below a value.
fn round_step(most: f64) -> f64 {
    if most <= 0.0 || !most.is_finite() {
        return 1.0;
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let fits = |step: &f64| *step >= rough * 0.999;
    steps.into_iter().find(fits).unwrap_or(10.0 * power)
}

/// Ticks of a logarithmic axis: more per decade if there are fewer decades.
fn round_ratios(least: f64, most: f64) -> Vec<f64> {
    if most < 4.0 * least {
        let step = round_step(most - least);
        let multiples = (least / step).ceil() as u64..=(most / step).floor() as u64;
        return multiples.map(|times| times as f64 * step).collect();
    }
    let powers = (most / least).log10();
    let leads: &[f64] = match powers {
        powers if powers < 1.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
        powers if powers < 3.5 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let exponents = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let all =
        exponents.flat_map(|exponent| leads.iter().map(move |lead| lead * 10f64.powi(exponent)));
    let inside = |value: &f64| (least..=most).contains(value);
    all.filter(inside).collect()
}

/// A number without trailing zeros.
pub fn plain(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size => (1.0 - size.log10().floor()) as usize,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// The unit for times up to this one: its seconds and its name.
pub fn time_unit(most: Seconds) -> (f64, &'static str) {
    shown(UnitTable::TIME.shown(most.0))
}

/// The unit for sizes up to this one: its bytes and its name.
pub fn size_unit(most: Bytes) -> (f64, &'static str) {
    shown(UnitTable::BYTES.shown(most.0 as f64))
}

fn shown(unit: Unit) -> (f64, &'static str) {
    (unit.factor(), unit.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let scale = Scale::linear(0.93, [0.0, 100.0]);
        let texts: Vec<String> = scale.ticks().into_iter().map(|tick| tick.1).collect();
        assert_eq!(texts, ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        let scale = Scale::logarithmic([3.0, 900.0], [0.0, 100.0]);
        let values: Vec<f64> = scale.ticks().into_iter().map(|tick| tick.0).collect();
        assert_eq!(values, [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert!(
            values
                .iter()
                .all(|&value| (0.0..=100.0).contains(&scale.at(value)))
        );
    }

    #[test]
    fn units_fit() {
        assert_eq!(time_unit(Seconds(0.003)), (1e-3, "ms"));
        assert_eq!(size_unit(Bytes(3 << 30)), (1_073_741_824.0, "GiB"));
        assert_eq!(
            [0.0, 0.25, 12.5, 1500.0].map(plain),
            ["0", "0.25", "12.5", "1500"]
        );
    }
}
