//! Loss curves of a run, as SVG and as PNG.

mod chart;
mod font;
mod raster;

use crate::page::{Scale, color};
use chart::{Chart, Line};
use partita::LossHistory;

/// Height of the figure in its units.
const HEIGHT: f64 = 480.0;
/// Left, right, top and bottom of the losses, and of the learning rate.
const LOSSES: [f64; 4] = [70.0, 840.0, 40.0, 300.0];
const RATES: [f64; 4] = [70.0, 840.0, 335.0, 430.0];
/// Losses whose ratio is larger have a logarithmic axis.
const RATIO_MAX: f64 = 20.0;

/// A figure in both forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CurveFigure {
    /// A file of SVG.
    pub svg: String,
    /// A file of PNG.
    pub png: Vec<u8>,
}

/// Losses of training and validation, and the learning rate, over epochs; of losses those that are finite. `None` if none
/// is.
pub fn curves(history: &LossHistory) -> Option<CurveFigure> {
    let finite = |point: &(f64, f64)| point.1.is_finite();
    let (curve, epochs) = (history.curve.iter(), history.epochs.iter());
    let steps = curve.clone().map(|one| (one.epochs, one.loss));
    let steps: Vec<(f64, f64)> = steps.filter(finite).collect();
    let training = epochs.clone().map(|&(epoch, loss, _)| (epoch as f64, loss));
    let training: Vec<(f64, f64)> = training.filter(finite).collect();
    let validation = epochs.filter_map(|&(epoch, _, loss)| Some((epoch as f64, loss?)));
    let validation: Vec<(f64, f64)> = validation.filter(finite).collect();
    let rates: Vec<(f64, f64)> = curve.map(|one| (one.epochs, one.learning_rate)).collect();
    let losses = [&steps, &training, &validation];
    let values = || {
        losses
            .iter()
            .flat_map(|line| line.iter().map(|point| point.1))
    };
    let most = values().fold(f64::MIN, f64::max);
    let least = values().fold(f64::MAX, f64::min);
    if !most.is_finite() || least > most {
        return None;
    }
    let mut last = losses.iter().filter_map(|line| line.last()).map(|it| it.0);
    let end = last.by_ref().fold(1e-9, f64::max);
    let title = format!("Losses of {}", history.model);
    let mut chart = Chart::new(&title, HEIGHT);
    let (x, y) = (across(LOSSES, end), upward(LOSSES, [least, most]));
    chart.axes(LOSSES, &x, &y, "loss");
    let lines = [
        ("training, by step", &steps, color::SKY, 1.0),
        ("training, mean of the epoch", &training, color::BLUE, 2.5),
        ("validation", &validation, color::VERMILLION, 2.5),
    ];
    let mut named = LOSSES[0] + 150.0;
    for (name, points, color, width) in lines {
        if points.is_empty() {
            continue;
        }
        chart.line(points, (&x, &y), Line { color, width });
        named = chart.name((named, 20.0), name, color);
    }
    draw_rates(&mut chart, &rates, end);
    Some(CurveFigure {
        svg: chart.svg(),
        png: chart.png(),
    })
}

/// The learning rate below the losses, unless it is 0; the title of the epochs below the last axis.
fn draw_rates(chart: &mut Chart, rates: &[(f64, f64)], end: f64) {
    let most = rates.iter().map(|point| point.1).fold(0.0, f64::max);
    if most > 0.0 {
        let (x, y) = (across(RATES, end), upward(RATES, [0.0, most]));
        chart.axes(RATES, &x, &y, "learning rate");
        let color = color::GREEN;
        chart.line(rates, (&x, &y), Line { color, width: 2.0 });
        chart.below(RATES, "epochs");
    } else {
        chart.below(LOSSES, "epochs");
    }
}

/// The axis of epochs.
fn across([left, right, _, _]: [f64; 4], end: f64) -> Scale {
    Scale::exact(end, [left, right])
}

/// A vertical axis, logarithmic where values differ much.
fn upward([_, _, top, bottom]: [f64; 4], [least, most]: [f64; 2]) -> Scale {
    if least > 0.0 && most > RATIO_MAX * least {
        Scale::logarithmic([least, most], [bottom, top])
    } else {
        Scale::linear(most, [bottom, top])
    }
}

#[cfg(test)]
mod tests {
    use super::chart::{Chart, Line};
    use crate::page::{Scale, color};

    #[test]
    fn the_same_line_is_drawn_in_both_forms() {
        let mut chart = Chart::new("a <chart>", 100.0);
        let (x, y) = (
            Scale::exact(1.0, [0.0, 860.0]),
            Scale::exact(1.0, [100.0, 0.0]),
        );
        let line = Line {
            color: color::BLUE,
            width: 2.0,
        };
        chart.line(&[(0.0, 0.5), (1.0, 0.5)], (&x, &y), line);
        let svg = chart.svg();
        assert!(
            svg.contains("points=\"0,50 860,50\"") && svg.contains("a &lt;chart&gt;"),
            "{svg}"
        );
        let bytes = chart.png();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&bytes))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), (1720, 200));
        let at = |x: usize, y: usize| &pixels[3 * (y * 1720 + x)..][..3];
        assert_eq!(
            (at(900, 100), at(900, 20)),
            (&[0x00, 0x72, 0xb2][..], &[255; 3][..])
        );
    }
}
