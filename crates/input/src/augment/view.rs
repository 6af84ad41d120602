//! One sample as a network sees it: where it lies in the files, and what becomes of its values.

use std::borrow::Cow;
use std::ops::Range;

use partita_data::Split;
use partita_formats::slab::Region4;
use partita_formats::{Samples, VolumeShape};
use partita_program::random::Draws;

use super::elastic::{Field, Stored};
use super::orientation::{Orientation, Region3};

/// A sample as a network sees it.
pub(crate) struct View {
    pub(crate) split: Split,
    /// Number of its volume in the split.
    pub(crate) volume: usize,
    /// Shape of the volume as it is stored.
    shape: VolumeShape,
    /// Extents D, H, W of the sample.
    extent: [usize; 3],
    /// Extents D, H, W of the volume after it is padded to those of the sample, and positions before those that are
    /// stored.
    padded: [usize; 3],
    padding: [usize; 3],
    /// Where the sample begins in the padded volume.
    pub(super) origin: [usize; 3],
    pub(super) orientation: Orientation,
    elastic: Option<Field>,
    /// How far displaced values may lie. Units: voxels.
    margin: usize,
    pub(super) scale: Option<f32>,
    pub(super) shift: Option<f32>,
    pub(super) noise: Option<(Draws, f32)>,
    /// Channels that the network sees of each stored one.
    pub(super) classes: usize,
}

impl View {
    /// A whole volume, or its first crop, as it is stored.
    pub(super) fn of(split: Split, volume: usize, shape: VolumeShape, extent: [usize; 3]) -> Self {
        let [_, stored @ ..] = shape;
        let padded = std::array::from_fn(|dim| stored[dim].max(extent[dim]));
        Self {
            split,
            volume,
            shape,
            extent,
            padded,
            padding: padding(stored, padded),
            origin: [0; 3],
            orientation: Orientation::AS_STORED,
            elastic: None,
            margin: 0,
            scale: None,
            shift: None,
            noise: None,
            classes: 1,
        }
    }

    pub(super) fn deform(&mut self, field: Field, magnitude: f64) {
        self.elastic = Some(field);
        self.margin = magnitude.ceil() as usize;
    }

    /// Whether the values of a part are those of its source, in the same order.
    pub(crate) fn is_as_stored(&self) -> bool {
        self.orientation == Orientation::AS_STORED && self.elastic.is_none() && !self.is_padded()
    }

    /// Whether it has all voxels of its volume, and perhaps padding.
    pub(crate) fn is_whole(&self) -> bool {
        self.padded == self.extent
    }

    /// Where it begins in the volume as it is stored, D, H, W; before it where that is padded.
    pub(crate) fn offset(&self) -> [f64; 3] {
        [0, 1, 2].map(|dim| self.origin[dim] as f64 - self.padding[dim] as f64)
    }

    pub(crate) fn is_padded(&self) -> bool {
        let [_, stored @ ..] = self.shape;
        self.padded != stored
    }

    /// The region of the volume, as it is stored, that a part (C, D, H, W) of the sample is made of; empty where all of
    /// the part is padding.
    pub(crate) fn source(&self, part: &Region4) -> Region4 {
        let [channels, part @ ..] = part.clone();
        let channels = channels.start / self.classes..channels.end.div_ceil(self.classes);
        let [_, stored @ ..] = self.shape;
        let mut source = self.padded_source(&part);
        for (dim, range) in source.iter_mut().enumerate() {
            let inside = |at: usize| at.saturating_sub(self.padding[dim]).min(stored[dim]);
            *range = inside(range.start)..inside(range.end);
        }
        if source.iter().any(Range::is_empty) {
            return [channels, 0..0, 0..0, 0..0];
        }
        let [d, h, w] = source;
        [channels, d, h, w]
    }

    /// The box of the padded volume that a part of the sample is made of.
    fn padded_source(&self, part: &Region3) -> Region3 {
        if part.iter().any(Range::is_empty) {
            return [0..0, 0..0, 0..0];
        }
        let source = self.orientation.source(self.extent, part);
        std::array::from_fn(|dim| {
            let origin = self.origin[dim];
            let start = (origin + source[dim].start).saturating_sub(self.margin);
            start..(origin + source[dim].end + self.margin).min(self.padded[dim])
        })
    }

    /// Puts stored values of the source of a part where the network sees them, and zeros where the volume is padded,
    /// behind those in `out`.
    pub(crate) fn arrange(&self, part: &Region4, source: &Samples, out: &mut Samples) {
        match (source, out) {
            (Samples::I16(source), Samples::I16(out)) => {
                self.rearrange(part, (source, 0), out, |stored, at| stored.nearest(at));
            }
            (Samples::F32(source), Samples::F32(out)) => self.arrange_floats(part, source, out),
            (Samples::I16(_), Samples::F32(_)) | (Samples::F32(_), Samples::I16(_)) => {
                panic!("values are arranged in the type that they have")
            }
        }
    }

    /// The same for floats, prepared or not.
    pub(crate) fn arrange_floats(&self, part: &Region4, source: &[f32], out: &mut Vec<f32>) {
        self.rearrange(part, (source, 0.0), out, |stored, at| stored.linear(at));
    }

    /// The same for class indices, which are never mixed; a volume is padded with `fill`.
    pub(crate) fn arrange_labels(
        &self,
        part: &Region4,
        (source, fill): (&Samples, f32),
        out: &mut Vec<f32>,
    ) {
        let mut values = Vec::new();
        source.write_f32(&mut values);
        self.rearrange(part, (&values, fill), out, |stored, at| stored.nearest(at));
    }

    fn rearrange<T: Copy>(
        &self,
        part: &Region4,
        (source, fill): (&[T], T),
        out: &mut Vec<T>,
        at: impl Fn(&Stored<'_, T>, [f64; 3]) -> T,
    ) {
        let channels = part[0].len();
        let source = &*self.with_padding(part, source, fill);
        let [_, d, h, w] = part.clone();
        let Some(field) = &self.elastic else {
            let shape = [d.len(), h.len(), w.len()];
            return self.orientation.turn(channels, shape, source, out);
        };
        let region = self.padded_source(&[d.clone(), h.clone(), w.clone()]);
        let extent: [usize; 3] = std::array::from_fn(|dim| region[dim].len());
        let count = extent.iter().product::<usize>();
        if count == 0 {
            return;
        }
        let boxes: Vec<Stored<'_, T>> = source
            .chunks_exact(count)
            .map(|values| Stored {
                values,
                start: std::array::from_fn(|dim| region[dim].start),
                extent,
            })
            .collect();
        // Plane by plane, as positions take more room than values.
        let (first, plane) = (out.len(), h.len() * w.len());
        out.resize(first + channels * d.len() * plane, source[0]);
        for (index, depth) in d.clone().enumerate() {
            let positions = self.positions(field, &[depth..depth + 1, h.clone(), w.clone()]);
            for (channel, stored) in boxes.iter().enumerate() {
                let start = first + (channel * d.len() + index) * plane;
                for (value, &position) in out[start..start + plane].iter_mut().zip(&positions) {
                    *value = at(stored, position);
                }
            }
        }
    }

    /// Values of the source of a part within those of the box of the padded volume.
    fn with_padding<'v, T: Copy>(&self, part: &Region4, source: &'v [T], fill: T) -> Cow<'v, [T]> {
        if !self.is_padded() {
            return Cow::Borrowed(source);
        }
        let [channels, d, h, w] = part.clone();
        let to = self.padded_source(&[d, h, w]);
        let [_, from @ ..] = self.source(part);
        let [depth, height, width] = to.clone().map(|range| range.len());
        let mut values = vec![fill; channels.len() * depth * height * width];
        let first: [usize; 3] = std::array::from_fn(|dim| {
            (from[dim].start + self.padding[dim]).saturating_sub(to[dim].start)
        });
        let [ds, hs, ws] = from.map(|range| range.len());
        for (row, stored) in source.chunks_exact(ws.max(1)).enumerate() {
            let (c, z, y) = (row / hs / ds, row / hs % ds, row % hs);
            let start = ((c * depth + first[0] + z) * height + first[1] + y) * width + first[2];
            values[start..start + ws].copy_from_slice(stored);
        }
        Cow::Owned(values)
    }

    /// Where in the padded volume the values of a part come from.
    fn positions(&self, field: &Field, [ds, hs, ws]: &Region3) -> Vec<[f64; 3]> {
        let mut positions = Vec::with_capacity(ds.len() * hs.len() * ws.len());
        for d in ds.clone() {
            for h in hs.clone() {
                field.row((d, h), ws.clone(), |w, displacement| {
                    let mut position = [0.0; 3];
                    for (dim, index) in [d, h, w].into_iter().enumerate() {
                        let moved = index as f64 + displacement[dim];
                        let moved = if self.orientation.reversed[dim] {
                            (self.extent[dim] - 1) as f64 - moved
                        } else {
                            moved
                        };
                        let to = self.orientation.dims[dim];
                        // Beyond the border the last value goes on.
                        let last = (self.padded[to] - 1) as f64;
                        position[to] = (self.origin[to] as f64 + moved).clamp(0.0, last);
                    }
                    positions.push(position);
                });
            }
        }
        positions
    }

    /// Changes the values of a part, which lie as the network sees them: scale, shift, noise.
    pub(crate) fn adjust(&self, part: &Region4, values: &mut [f32]) {
        if let Some(factor) = self.scale {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        if let Some(number) = self.shift {
            values.iter_mut().for_each(|value| *value += number);
        }
        if let Some((draws, deviation)) = self.noise {
            self.add_noise(part, draws, deviation, values);
        }
    }

    fn add_noise(&self, part: &Region4, draws: Draws, deviation: f32, values: &mut [f32]) {
        let channels = self.shape[0] as u64;
        let [_, heights, widths] = self.extent.map(|extent| extent as u64);
        let [cs, ds, hs, ws] = part.clone();
        let mut values = values.iter_mut();
        for c in cs {
            for d in ds.clone() {
                for h in hs.clone() {
                    let row = (d as u64 * heights + h as u64) * widths;
                    for (w, value) in ws.clone().zip(&mut values) {
                        let element = (row + w as u64) * channels + c as u64;
                        *value += deviation * normal(draws.whole(element));
                    }
                }
            }
        }
    }
}

/// A number with the standard normal distribution, of 53 random bits.
///
/// Source: Box, Muller, "A note on the generation of random normal deviates" (1958).
fn normal(bits: u64) -> f32 {
    const HALF: u32 = 26;
    let unit = 1.0 / (1u64 << HALF) as f32;
    let radius = ((bits >> HALF) >> 1) as f32 + 0.5;
    let angle = (bits & ((1 << HALF) - 1)) as f32;
    let radius = (-2.0 * (radius * unit).min(1.0).ln()).sqrt();
    radius * (std::f32::consts::TAU * (angle * unit)).cos()
}

/// Positions before those of a volume that is padded on both sides.
pub(super) fn padding(stored: [usize; 3], padded: [usize; 3]) -> [usize; 3] {
    std::array::from_fn(|dim| (padded[dim] - stored[dim]) / 2)
}

#[cfg(test)]
mod tests {
    use super::super::draws::Operation;
    use super::*;

    #[test]
    fn noise_has_the_moments_of_a_normal_distribution() {
        let draws = Draws::new(1, 2, 3, Operation::Noise as u32);
        const COUNT: u64 = 200_000;
        let mut moments = [0.0; 4];
        for element in 0..COUNT {
            let value = f64::from(normal(draws.whole(element)));
            for (power, sum) in (1..).zip(&mut moments) {
                *sum += value.powi(power) / COUNT as f64;
            }
        }
        // Bounds of five standard errors.
        for (moment, (plain, error)) in
            moments
                .into_iter()
                .zip([(0.0, 0.012), (1.0, 0.016), (0.0, 0.044), (3.0, 0.11)])
        {
            assert!((moment - plain).abs() < error, "{moments:?}");
        }
        assert!(normal((1 << 53) - 1).is_finite() && normal(0).is_finite());
    }
}
