//! Windows of attention, and the rows of a table of score biases.

use serde::{Deserialize, Serialize};

/// Windows within which positions attend to each other. They tile the positions after a cyclic shift towards lower
/// indices. Where that brings opposite borders together in one window, `mask` is added to the scores between them.
/// Source: Liu et al., "Swin Transformer", ICCV 2021, section 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionWindow {
    /// Positions of a window along D, H, W; divisors of the tensor's.
    pub extent: [usize; 3],
    /// Positions of the shift along D, H, W, less than those of a window.
    pub shift: [usize; 3],
    /// Added to scores across borders.
    pub mask: f64,
}

impl AttentionWindow {
    /// The mask of torchvision and MONAI.
    pub const MASK: f64 = -100.0;

    /// Positions of a window.
    pub fn volume(&self) -> usize {
        self.extent
            .iter()
            .fold(1, |all, &one| all.saturating_mul(one))
    }

    /// Windows of a tensor of these extents.
    pub fn count(&self, tensor: [usize; 3]) -> usize {
        (0..3).map(|dim| tensor[dim] / self.extent[dim]).product()
    }

    /// Index after the shift of a position of a window, both numbered in (D, H, W) order.
    fn shifted(&self, tensor: [usize; 3], window: usize, position: usize) -> [usize; 3] {
        let counts = std::array::from_fn(|dim| tensor[dim] / self.extent[dim]);
        let (window, inner) = (unravel(window, counts), unravel(position, self.extent));
        std::array::from_fn(|dim| window[dim] * self.extent[dim] + inner[dim])
    }

    /// Index in the tensor of a position of a window, both numbered in (D, H, W) order.
    pub fn position(&self, tensor: [usize; 3], window: usize, position: usize) -> [usize; 3] {
        let at = self.shifted(tensor, window, position);
        std::array::from_fn(|dim| (at[dim] + self.shift[dim]) % tensor[dim])
    }

    /// Number of the part of the tensor in which a position of a window lies; the mask is added between two parts.
    pub fn part(&self, tensor: [usize; 3], window: usize, position: usize) -> usize {
        let at = self.shifted(tensor, window, position);
        (0..3).fold(0, |number, dim| {
            let wraps = self.shift[dim] > 0 && at[dim] + self.shift[dim] >= tensor[dim];
            2 * number + usize::from(wraps)
        })
    }
}

/// Which row of a bias table belongs to the score of position `i` of q and `j` of k of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScoreRows {
    /// A row for each pair: `i * inner + j`.
    Pairs {
        /// Positions of k.
        inner: usize,
    },
    /// A row for each distance of two positions of a window of these extents, in (D, H, W) order from the most
    /// negative one. Source: Liu et al., section 3.2; torchvision, `relative_position_index`.
    Relative([usize; 3]),
}

impl ScoreRows {
    /// Those of a table, by the window whose distances it has; none for one of pairs.
    pub fn of(table: Option<[usize; 3]>, inner: usize) -> Self {
        table.map_or(Self::Pairs { inner }, Self::Relative)
    }

    /// The row is the sum of this and [`Self::of_key`].
    pub fn of_query(self, i: usize) -> usize {
        match self {
            Self::Pairs { inner } => i * inner,
            Self::Relative(table) => {
                let number = ravel(unravel(i, table), table);
                number + ravel(table.map(|extent| extent - 1), table)
            }
        }
    }

    /// What is added to [`Self::of_query`].
    pub fn of_key(self, j: usize) -> i64 {
        match self {
            Self::Pairs { .. } => j as i64,
            Self::Relative(table) => -(ravel(unravel(j, table), table) as i64),
        }
    }

    /// The row.
    pub fn row(self, i: usize, j: usize) -> usize {
        self.of_query(i)
            .wrapping_add_signed(self.of_key(j) as isize)
    }

    /// Rows of a table, given the positions of q.
    pub fn count(self, outer: usize) -> usize {
        match self {
            Self::Pairs { inner } => outer.saturating_mul(inner),
            Self::Relative(table) => table.iter().fold(1, |all, &extent| {
                all.saturating_mul(extent.saturating_mul(2).saturating_sub(1))
            }),
        }
    }
}

fn unravel(number: usize, [_, h, w]: [usize; 3]) -> [usize; 3] {
    [number / (h * w), number / w % h, number % w]
}

/// Number of a distance from the most negative one.
fn ravel([d, h, w]: [usize; 3], [_, height, width]: [usize; 3]) -> usize {
    (d * (2 * height - 1) + h) * (2 * width - 1) + w
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_tile_the_shifted_positions() {
        let window = AttentionWindow {
            extent: [1, 2, 3],
            shift: [0, 1, 1],
            mask: -100.0,
        };
        let tensor = [1, 4, 6];
        assert_eq!((window.count(tensor), window.volume()), (4, 6));
        let mut all: Vec<_> = (0..4)
            .flat_map(|one| (0..6).map(move |i| window.position(tensor, one, i)))
            .collect();
        assert_eq!(all[0], [0, 1, 1]);
        assert_eq!(all[23], [0, 0, 0]);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 24);
        let parts = |one| [0, 2, 3, 5].map(|i| window.part(tensor, one, i));
        assert_eq!(parts(0), [0; 4]);
        assert_eq!(parts(1), [0, 1, 0, 1]);
        assert_eq!(parts(3), [0, 1, 2, 3]);
    }

    #[test]
    fn rows_are_those_of_swin() {
        // torchvision's `relative_position_index` of a window of 2x2.
        let expected = [4, 3, 1, 0, 5, 4, 2, 1, 7, 6, 4, 3, 8, 7, 5, 4];
        let rows = ScoreRows::Relative([1, 2, 2]);
        let found: Vec<_> = (0..16).map(|pair| rows.row(pair / 4, pair % 4)).collect();
        assert_eq!(found, expected);
        assert_eq!(rows.count(4), 9);
        let pairs = ScoreRows::of(None, 3);
        assert_eq!((pairs.row(2, 1), pairs.count(5)), (7, 15));
    }
}
