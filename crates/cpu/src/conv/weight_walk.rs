//! Walk over the positions of x and dy, for the gradient with respect to the weights.

/// Rows of positions, and where they are in x and dy. Pointers: to the first of the channels that are read
/// at each position.
#[derive(Clone, Copy)]
pub(crate) struct WalkArgs {
    pub x: *const f32,
    pub y: *const f32,
    pub rows: (usize, usize),
    /// Extents of the dims outside the inner one; the others 1.
    pub counts: [usize; 4],
    pub x_step: [usize; 4],
    pub y_step: [usize; 4],
    /// Positions of a row, steps of x and dy.
    pub inner: (usize, usize, usize),
}

/// A walk over rows of positions; divides once, not for every row.
pub(crate) struct Rows<'a> {
    walk: &'a WalkArgs,
    index: [usize; 4],
    /// Offsets of the row in x and dy.
    pub x: usize,
    pub y: usize,
}

impl Rows<'_> {
    #[inline(always)]
    pub(crate) fn new(walk: &WalkArgs) -> Rows<'_> {
        let (mut index, mut rest) = ([0; 4], walk.rows.0);
        for dim in [2, 1, 0] {
            index[dim] = rest % walk.counts[dim];
            rest /= walk.counts[dim];
        }
        let dot = |step: &[usize; 4]| (0..3).map(|i| index[i] * step[i]).sum();
        let (x, y) = (dot(&walk.x_step), dot(&walk.y_step));
        Rows { walk, index, x, y }
    }

    #[inline(always)]
    pub(crate) fn step(&mut self) {
        let t = self.walk;
        for dim in [2, 1, 0] {
            self.index[dim] += 1;
            self.x += t.x_step[dim];
            self.y += t.y_step[dim];
            if self.index[dim] < t.counts[dim] {
                return;
            }
            self.index[dim] = 0;
            self.x -= t.counts[dim] * t.x_step[dim];
            self.y -= t.counts[dim] * t.y_step[dim];
        }
    }
}
