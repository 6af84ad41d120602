//! Pixels: lines, discs, boxes and letters, and a file of PNG of them.

use super::font;
use crate::page::Anchor;

/// Pixels of a unit of the figure.
const SCALE: f64 = 2.0;
/// Pixels of a dot of a letter.
const DOT: i64 = 2;

/// A picture in RGB on white.
pub struct Raster {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 3]>,
}

impl Raster {
    /// A white picture; `width` and `height` are in units of the figure.
    pub fn new(width: f64, height: f64) -> Self {
        let [width, height] = [width, height].map(|size| (size * SCALE).ceil() as usize);
        Self {
            width,
            height,
            pixels: vec![[255; 3]; width * height],
        }
    }

    /// Covers a part of a pixel.
    fn cover(&mut self, x: i64, y: i64, part: f64, color: [u8; 3]) {
        let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else {
            return;
        };
        if x >= self.width || y >= self.height {
            return;
        }
        let pixel = &mut self.pixels[y * self.width + x];
        for (old, new) in pixel.iter_mut().zip(color) {
            let mixed = f64::from(*old) + part * (f64::from(new) - f64::from(*old));
            *old = mixed.round() as u8;
        }
    }

    /// Covers all pixels of a box by what `distance` says: the distance of their middle beyond an edge, in pixels.
    fn shade(&mut self, bounds: [f64; 4], color: &str, distance: impl Fn(f64, f64) -> f64) {
        let color = rgb(color);
        let [left, right, top, bottom] = bounds;
        let width = self.width as f64;
        let height = self.height as f64;
        for y in (top - 1.0).clamp(0.0, height) as i64..(bottom + 2.0).clamp(0.0, height) as i64 {
            for x in (left - 1.0).clamp(0.0, width) as i64..(right + 2.0).clamp(0.0, width) as i64 {
                let part = 0.5 - distance(x as f64 + 0.5, y as f64 + 0.5);
                if part > 0.0 {
                    self.cover(x, y, part.min(1.0), color);
                }
            }
        }
    }

    /// A line through points.
    pub fn line(&mut self, points: &[(f64, f64)], width: f64, color: &str) {
        let half = width * SCALE / 2.0;
        for pair in points.windows(2) {
            let [(x1, y1), (x2, y2)] = [pair[0], pair[1]].map(|(x, y)| (x * SCALE, y * SCALE));
            let (along_x, along_y) = (x2 - x1, y2 - y1);
            let length = (along_x * along_x + along_y * along_y).max(1e-12);
            let bounds = [
                x1.min(x2) - half,
                x1.max(x2) + half,
                y1.min(y2) - half,
                y1.max(y2) + half,
            ];
            self.shade(bounds, color, |x, y| {
                let part = ((x - x1) * along_x + (y - y1) * along_y) / length;
                let part = part.clamp(0.0, 1.0);
                (x - x1 - part * along_x).hypot(y - y1 - part * along_y) - half
            });
        }
    }

    /// A disc.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, color: &str) {
        let [middle_x, middle_y, radius] = [x, y, radius].map(|size| size * SCALE);
        let bounds = [
            middle_x - radius,
            middle_x + radius,
            middle_y - radius,
            middle_y + radius,
        ];
        self.shade(bounds, color, |x, y| {
            (x - middle_x).hypot(y - middle_y) - radius
        });
    }

    /// A filled box: left, top, width, height.
    pub fn area(&mut self, frame: [f64; 4], color: &str) {
        let [left, top, width, height] = frame.map(|size| size * SCALE);
        let bounds = [left, left + width, top, top + height];
        self.shade(bounds, color, |x, y| {
            let beyond_x = (left - x).max(x - left - width);
            let beyond_y = (top - y).max(y - top - height);
            beyond_x.max(beyond_y)
        });
    }

    /// A text whose base line is at a point.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let width = font::width(text) as i64 * DOT;
        let left = (x * SCALE) as i64
            - match anchor {
                Anchor::Start => 0,
                Anchor::Middle => width / 2,
                Anchor::End => width,
            };
        let top = (y * SCALE) as i64 - font::HEIGHT as i64 * DOT;
        self.letters(text, |across, down| (left + across, top + down));
    }

    /// A text that is read from below, around a point.
    pub fn upward(&mut self, (x, y): (f64, f64), text: &str) {
        let width = font::width(text) as i64 * DOT;
        let bottom = (y * SCALE) as i64 + width / 2;
        let left = (x * SCALE) as i64 - font::HEIGHT as i64 * DOT;
        self.letters(text, |across, down| (left + down, bottom - across));
    }

    fn letters(&mut self, text: &str, place: impl Fn(i64, i64) -> (i64, i64)) {
        font::for_dots(text, |column, row| {
            for across in 0..DOT {
                for down in 0..DOT {
                    let (column, row) = (column as i64 * DOT, row as i64 * DOT);
                    let (x, y) = place(column + across, row + down);
                    self.cover(x, y, 1.0, [0; 3]);
                }
            }
        });
    }

    /// A file of PNG.
    pub fn png(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let written = encoder
            .write_header()
            .and_then(|mut writer| writer.write_image_data(self.pixels.as_flattened()));
        assert!(written.is_ok(), "a vector takes any bytes");
        bytes
    }
}

/// The color of `#rrggbb`.
fn rgb(color: &str) -> [u8; 3] {
    let part = |at: usize| {
        color
            .get(at..at + 2)
            .and_then(|two| u8::from_str_radix(two, 16).ok())
    };
    [1, 3, 5].map(|at| part(at).unwrap_or(0))
}
