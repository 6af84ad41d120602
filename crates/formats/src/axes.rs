//! The order of the dims of a stored array: which of them is N, C, D, H or W.

use std::fmt;
use std::str::FromStr;

use partita_space::Help;
use serde::{Deserialize, Serialize};

use crate::element::{Elements, each};
use crate::samples::VolumeShape;
use crate::slab::Region4;

/// Order of dims for samples in (C, D, H, W) order.
const CHANNELS_FIRST: &str = "NCDHW";

/// Letters of the dims of a stored array, the outermost first, such as `NCDHW`, `NDHWC` or `DHW`.
///
/// N numbers the samples of a file. Dims that are left out have extent 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DimOrder(Vec<char>);

impl Default for DimOrder {
    fn default() -> Self {
        Self(CHANNELS_FIRST.chars().collect())
    }
}

/// A text that is no order of dims.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no order of dims{help}",
    help = Help::possible(
        "the letters N (samples), C (channels), D, H and W, each at most once and W always, such as NCDHW, NDHWC or DHW"
    )
)]
pub struct NoDimOrder(String);

impl FromStr for DimOrder {
    type Err = NoDimOrder;

    fn from_str(text: &str) -> Result<Self, NoDimOrder> {
        let letters: Vec<char> = text.chars().collect();
        let is_valid = letters.iter().enumerate().all(|(at, letter)| {
            CHANNELS_FIRST.contains(*letter) && !letters[..at].contains(letter)
        });
        if is_valid && letters.contains(&'W') {
            return Ok(Self(letters));
        }
        Err(NoDimOrder(text.to_owned()))
    }
}

impl TryFrom<String> for DimOrder {
    type Error = NoDimOrder;

    fn try_from(text: String) -> Result<Self, NoDimOrder> {
        text.parse()
    }
}

impl From<DimOrder> for String {
    fn from(order: DimOrder) -> Self {
        order.to_string()
    }
}

impl fmt::Display for DimOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|letter| write!(f, "{letter}"))
    }
}

impl DimOrder {
    /// Whether the samples of a file are stacked along one of the dims.
    pub fn is_stacked(&self) -> bool {
        self.0.contains(&'N')
    }

    /// The order with N, as the outermost dim if it is not there, or without it.
    pub fn stacked(&self, is_stacked: bool) -> Self {
        let mut letters = self.0.clone();
        if !is_stacked {
            letters.retain(|&letter| letter != 'N');
        } else if !self.is_stacked() {
            letters.insert(0, 'N');
        }
        Self(letters)
    }

    /// Which dim numbers the samples; the outermost if none does.
    pub fn samples_dim(&self) -> usize {
        self.0.iter().position(|&letter| letter == 'N').unwrap_or(0)
    }

    /// Order of vectors of numbers, one per sample.
    pub fn of_rows() -> Self {
        Self(vec!['N', 'W'])
    }

    /// The dims as text, such as `N, D, H, W, C`.
    pub fn dims(&self) -> String {
        let letters: Vec<String> = self.0.iter().map(char::to_string).collect();
        letters.join(", ")
    }

    /// Samples and shape of a sample of an array with these very dims; `None` for another rank.
    pub fn read_shape(&self, shape: &[usize]) -> Option<(Option<usize>, VolumeShape)> {
        if shape.len() != self.0.len() {
            return None;
        }
        let extent = |letter| {
            let at = self.0.iter().position(|&other| other == letter)?;
            Some(shape[at])
        };
        Some((
            extent('N'),
            ['C', 'D', 'H', 'W'].map(|letter| extent(letter).unwrap_or(1)),
        ))
    }

    /// Shape that an array in this order has.
    pub fn shape(&self, samples: usize, each: VolumeShape) -> Vec<usize> {
        let extent = |&letter: &char| match letter {
            'N' => samples,
            letter => each[index(letter)],
        };
        self.0.iter().map(extent).collect()
    }

    /// How an array of this shape holds samples. Dims of extent 1 may be left out or added.
    pub fn fit(&self, shape: &[usize], samples: usize, each: VolumeShape) -> Option<Axes> {
        let mut dims = vec![None; shape.len()];
        let mut at = 0;
        for (letter, extent) in self.0.iter().zip(self.shape(samples, each)) {
            while extent != 1 && shape.get(at) == Some(&1) {
                at += 1;
            }
            match shape.get(at) {
                Some(&found) if found == extent => {
                    dims[at] = Some(*letter);
                    at += 1;
                }
                _ if extent == 1 => {}
                _ => return None,
            }
        }
        shape[at..]
            .iter()
            .all(|&extent| extent == 1)
            .then_some(Axes { dims })
    }
}

fn index(letter: char) -> usize {
    match letter {
        'C' => 0,
        'D' => 1,
        'H' => 2,
        _ => 3,
    }
}

/// What the dims of one array are; `None` for dims of extent 1 that say nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes {
    dims: Vec<Option<char>>,
}

impl Axes {
    /// Where a region of a sample lies in the array: (start, count) per dim.
    pub fn region(&self, place: Option<usize>, region: &Region4) -> Vec<(usize, usize)> {
        let range = |dim: &Option<char>| match dim {
            None => (0, 1),
            Some('N') => (place.unwrap_or(0), 1),
            Some(letter) => {
                let range = &region[index(*letter)];
                (range.start, range.len())
            }
        };
        let mut ranges: Vec<(usize, usize)> = self.dims.iter().map(range).collect();
        // A dim that the array lacks can still be asked for with extent 0.
        if region.iter().any(|range| range.is_empty())
            && let Some(first) = ranges.first_mut()
        {
            first.1 = 0;
        }
        ranges
    }

    /// The dim of the width; the innermost if the array has none.
    pub fn width(&self) -> usize {
        let at = self.dims.iter().position(|dim| *dim == Some('W'));
        at.unwrap_or(self.dims.len().saturating_sub(1))
    }

    /// Whether elements of a region lie in (C, D, H, W) order.
    pub fn is_channels_first(&self) -> bool {
        let letters = self.dims.iter().flatten().filter(|&&letter| letter != 'N');
        letters.map(|&letter| index(letter)).is_sorted()
    }

    /// Brings the elements of a region from the order of the array to (C, D, H, W).
    pub fn to_channels_first(&self, elements: Elements, region: &Region4) -> Elements {
        let mut strides = [0; 4];
        let mut stride = 1;
        for letter in self
            .dims
            .iter()
            .rev()
            .flatten()
            .filter(|&&letter| letter != 'N')
        {
            strides[index(*letter)] = stride;
            stride *= region[index(*letter)].len();
        }
        let extents = region.clone().map(|range| range.len());
        let mut elements = elements;
        each!(&mut elements, values => *values = gather(values, extents, strides));
        elements
    }
}

/// Elements in (C, D, H, W) order, by the strides of these dims among the values.
pub fn gather<T: Copy>(values: &[T], extents: [usize; 4], strides: [usize; 4]) -> Vec<T> {
    let mut out = Vec::with_capacity(values.len());
    for c in 0..extents[0] {
        for d in 0..extents[1] {
            for h in 0..extents[2] {
                let start = c * strides[0] + d * strides[1] + h * strides[2];
                out.extend((0..extents[3]).map(|w| values[start + w * strides[3]]));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> DimOrder {
        text.parse().unwrap()
    }

    #[test]
    fn orders_are_parsed_or_refused() {
        for text in ["NCDHW", "NDHWC", "DHW", "HWC", "W"] {
            assert_eq!(order(text).to_string(), text);
        }
        for text in ["", "NCDH", "NWW", "NCTHW", "ncdhw"] {
            assert!(text.parse::<DimOrder>().is_err(), "{text}");
        }
        assert_eq!(order("DHWC").stacked(true), order("NDHWC"));
        assert_eq!(order("NDHWC").stacked(false), order("DHWC"));
    }

    #[test]
    fn dims_of_extent_1_may_be_left_out_or_added() {
        let each = [1, 4, 1, 6];
        for shape in [
            vec![9, 1, 4, 1, 6],
            vec![9, 4, 6],
            vec![9, 4, 1, 6],
            vec![1, 9, 4, 6, 1],
        ] {
            let axes = order("NCDHW").fit(&shape, 9, each).unwrap();
            let at = axes.region(Some(7), &[0..1, 1..3, 0..1, 2..6]);
            let cut: Vec<_> = at.into_iter().filter(|&range| range != (0, 1)).collect();
            assert_eq!(cut, [(7, 1), (1, 2), (2, 4)], "{shape:?}");
        }
        for shape in [
            vec![9, 6, 4],
            vec![9, 24],
            vec![9, 4, 6, 2],
            vec![4, 6],
            vec![],
        ] {
            assert_eq!(order("NCDHW").fit(&shape, 9, each), None, "{shape:?}");
        }
    }

    #[test]
    fn channels_last_becomes_channels_first() {
        let axes = order("NDHWC")
            .fit(&[5, 2, 3, 4, 2], 5, [2, 2, 3, 4])
            .unwrap();
        let region = [0..2, 1..2, 0..2, 1..4];
        assert_eq!(
            axes.region(Some(3), &region),
            [(3, 1), (1, 1), (0, 2), (1, 3), (0, 2)]
        );
        assert!(!axes.is_channels_first());
        let stored = Elements::I32((0..12).collect());
        let Elements::I32(values) = axes.to_channels_first(stored, &region) else {
            panic!("the type stays");
        };
        assert_eq!(values, [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]);
    }
}
