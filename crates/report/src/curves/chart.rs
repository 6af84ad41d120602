//! A chart of lines that is drawn twice: as SVG, and as pixels.

use super::raster::Raster;
use crate::page::{Anchor, Scale, Stroke, Svg, WIDTH, color};

/// Half of the height of the letters of a label, in units of the figure.
const LETTER: f64 = 4.0;

/// Color and width of a line.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub color: &'static str,
    pub width: f64,
}

enum Element {
    Line(Vec<(f64, f64)>, Line),
    Dot((f64, f64), &'static str),
    Label((f64, f64), Anchor, String),
    Upward((f64, f64), String),
    Area([f64; 4], &'static str),
}

/// A chart under construction.
pub struct Chart {
    title: String,
    height: f64,
    elements: Vec<Element>,
}

impl Chart {
    /// An empty chart.
    pub fn new(title: &str, height: f64) -> Self {
        Self {
            title: title.to_owned(),
            height,
            elements: Vec::new(),
        }
    }

    /// Axes of a frame: left, right, top, bottom.
    pub fn axes(&mut self, frame: [f64; 4], x: &Scale, y: &Scale, title: &str) {
        let [left, right, top, bottom] = frame;
        let thin = |color| Line { color, width: 1.0 };
        for (value, text) in y.ticks() {
            let at = y.at(value);
            self.push_line(&[(left, at), (right, at)], thin(color::FAINT));
            self.label((left - 6.0, at + LETTER), Anchor::End, &text);
        }
        let mut free = f64::NEG_INFINITY;
        for (value, text) in x.ticks() {
            let at = x.at(value);
            self.push_line(&[(at, top), (at, bottom)], thin(color::FAINT));
            let half = LETTER * text.chars().count() as f64;
            if at - half > free {
                self.label((at, bottom + 17.0), Anchor::Middle, &text);
                free = at + half;
            }
        }
        self.push_line(
            &[(left, top), (left, bottom), (right, bottom)],
            thin(color::BLACK),
        );
        let middle = ((left - 52.0), (top + bottom) / 2.0);
        self.elements
            .push(Element::Upward(middle, title.to_owned()));
    }

    /// The title below a horizontal axis.
    pub fn below(&mut self, [left, right, _, bottom]: [f64; 4], title: &str) {
        self.label(((left + right) / 2.0, bottom + 36.0), Anchor::Middle, title);
    }

    /// A line through points, with a dot where there is one alone or few.
    pub fn line(&mut self, points: &[(f64, f64)], (x, y): (&Scale, &Scale), line: Line) {
        let finite = points.iter().filter(|point| point.1.is_finite());
        let places: Vec<(f64, f64)> = finite.map(|point| (x.at(point.0), y.at(point.1))).collect();
        if line.width > 2.0 && places.len() <= 40 {
            let dots = places.iter().map(|&place| Element::Dot(place, line.color));
            self.elements.extend(dots);
        }
        self.push_line(&places, line);
    }

    /// An entry of the legend; returns where the next one starts.
    pub fn name(&mut self, (left, middle): (f64, f64), name: &str, color: &'static str) -> f64 {
        let swatch = [left, middle - 6.0, 12.0, 12.0];
        self.elements.push(Element::Area(swatch, color));
        self.label((left + 17.0, middle + LETTER), Anchor::Start, name);
        left + 40.0 + 7.5 * name.chars().count() as f64
    }

    fn label(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.elements
            .push(Element::Label(at, anchor, text.to_owned()));
    }

    fn push_line(&mut self, points: &[(f64, f64)], line: Line) {
        self.elements.push(Element::Line(points.to_vec(), line));
    }

    /// A file of SVG.
    pub fn svg(&self) -> String {
        let mut svg = Svg::new("curves", &self.title, &self.title, self.height);
        svg.area([0.0, 0.0, WIDTH, self.height], "#ffffff");
        for element in &self.elements {
            match element {
                Element::Line(points, line) => {
                    svg.line(points, Stroke::solid(line.color, line.width));
                }
                Element::Dot(at, color) => svg.dot(*at, 3.0, color, color, ""),
                Element::Label(at, anchor, text) => svg.label(*at, *anchor, text),
                Element::Upward(at, text) => svg.upward(*at, text),
                Element::Area(frame, color) => svg.area(*frame, color),
            }
        }
        // Without the style sheet of a page.
        let style = "font-family=\"sans-serif\" font-size=\"13\" viewBox=";
        svg.finish().replacen("viewBox=", style, 1)
    }

    /// A file of PNG.
    pub fn png(&self) -> Vec<u8> {
        let mut raster = Raster::new(WIDTH, self.height);
        for element in &self.elements {
            match element {
                Element::Line(points, line) => raster.line(points, line.width, line.color),
                Element::Dot(at, color) => raster.dot(*at, 3.5, color),
                Element::Label(at, anchor, text) => raster.text(*at, *anchor, text),
                Element::Upward(at, text) => raster.upward(*at, text),
                Element::Area(frame, color) => raster.area(*frame, color),
            }
        }
        raster.png()
    }
}
