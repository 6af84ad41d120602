//! The transforms of a tile: along W of pairs of real lines, then along H and D.
//!
//! Numbers at the frequencies 0 and N/2 along W are conjugates of others at the same of these
//! frequencies, so about half of them is stored: along H those up to N/2. Neither direction is
//! normalized until the outputs or taps are there.

use super::line::{Complex, Feed, LINE_MAX, Sink, transform};
use crate::conv::transformed::tile::{AnyRoom, Room, Tile};
use crate::conv::transformed::tiling::Points;
use crate::simd::{LANES_MAX, Simd};

/// Taps of the largest kernel.
pub(super) const TAPS_MAX: usize = 343;
/// Vectors of the largest tile between its transforms along the dims.
pub(super) const TILE_MAX: usize = 16 * 16 * 18;

/// Factor of the products of two transforms of pairs of lines.
const TWICE: usize = 4;

/// Points and taps along the dims; a dim with one point is not transformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FourierTile {
    pub(super) n: [usize; 3],
    pub(super) k: [usize; 3],
}

impl FourierTile {
    /// Outputs along the dims: those that do not reach around the tile.
    pub(crate) fn outputs(self) -> [usize; 3] {
        std::array::from_fn(|i| self.n[i] + 1 - self.k[i])
    }

    /// Frequencies that are stored.
    pub(crate) fn points(self) -> usize {
        self.first_point(self.n[2] / 2) + self.n[0] * (self.n[1] / 2 + 1)
    }

    /// Vectors between the transforms along the dims.
    pub(super) fn room(self) -> usize {
        self.n[0] * self.n[1] * self.row()
    }

    /// Vectors of the frequencies of a line along W.
    #[inline(always)]
    fn row(self) -> usize {
        self.n[2] + 2
    }

    /// Whether a frequency along W has conjugates at the same.
    #[inline(always)]
    fn is_edge(self, w: usize) -> bool {
        w == 0 || w == self.n[2] / 2
    }

    /// Stored frequencies along H at one along W.
    #[inline(always)]
    fn stored(self, w: usize) -> usize {
        if self.is_edge(w) {
            self.n[1] / 2 + 1
        } else {
            self.n[1]
        }
    }

    /// First point at a frequency along W.
    #[inline(always)]
    fn first_point(self, w: usize) -> usize {
        match w {
            0 => 0,
            w => self.n[0] * (self.n[1] / 2 + 1 + (w - 1) * self.n[1]),
        }
    }

    /// Twice the frequencies of vectors of a box of this size, zero beyond it.
    ///
    /// # Safety
    /// The processor has the features of `S`; the box can be read and the points written, which no
    /// other thread accesses.
    #[inline(always)]
    unsafe fn forward<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        size: [usize; 3],
        put: impl Put,
        layout: Points,
    ) {
        let mut room = Room::<{ TILE_MAX * LANES_MAX }>::new();
        let room = room.start();
        let row = self.row() * S::LANES;
        // SAFETY: guaranteed by the caller; there is room for all frequencies.
        unsafe {
            for d in 0..size[0] {
                for h in (0..size[1]).step_by(2) {
                    let from = from.add(d * pitch[0] + h * pitch[1]);
                    let second = (h + 1 < size[1]).then(|| from.add(pitch[1]));
                    let to = room.add((d * self.n[1] + h) * row);
                    self.forward_pair::<S>((from, second), pitch[2], size[2], to, row);
                }
            }
            for w in 0..=self.n[2] / 2 {
                self.forward_column::<S>(room, w, size, put, layout);
            }
        }
    }

    /// Along H and D at one frequency along W, from the room to points.
    ///
    /// # Safety
    /// As for [`FourierTile::forward`].
    #[inline(always)]
    unsafe fn forward_column<S: Simd>(
        self,
        room: *mut f32,
        w: usize,
        size: [usize; 3],
        put: impl Put,
        layout: Points,
    ) {
        let [planes, rows, _] = self.n;
        let (stored, first) = (self.stored(w), self.first_point(w));
        let row = self.row() * S::LANES;
        let to = |first: usize, step: usize, limit: usize| PutLine {
            put,
            first,
            step,
            limit,
            layout,
        };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let column = room.add(2 * w * S::LANES);
            if planes == 1 {
                let line = Line::new(column, row, rows);
                return transform::<S>(rows, line, size[1], to(first, 1, stored));
            }
            for d in 0..size[0] {
                let line = Line::new(column.add(d * rows * row), row, stored);
                transform::<S>(rows, line, size[1], line);
            }
            for h in 0..stored {
                let line = Line::new(column.add(h * row), rows * row, planes);
                transform::<S>(planes, line, size[0], to(first + h, stored, planes));
            }
        }
    }

    /// Twice the frequencies of two real lines along W, or of one, from one transform.
    ///
    /// # Safety
    /// As for [`FourierTile::forward`]; `to` has room for lines that are `row` apart.
    #[inline(always)]
    unsafe fn forward_pair<S: Simd>(
        self,
        (first, second): (*const f32, Option<*const f32>),
        step: usize,
        count: usize,
        to: *mut f32,
        row: usize,
    ) {
        let mut both = Room::<{ 2 * LINE_MAX * LANES_MAX }>::new();
        let n = self.n[2];
        let line = Line::new(both.start(), 2 * S::LANES, n);
        // SAFETY: guaranteed by the caller.
        unsafe {
            let zero = [S::splat(0.0)];
            let (imaginary, imaginary_step) = match second {
                Some(second) => (second, step),
                None => (zero.as_ptr().cast(), 0),
            };
            let pair = Pair {
                first,
                step,
                second: imaginary,
                second_step: imaginary_step,
            };
            transform::<S>(n, pair, count, line);
            for k in 0..=n / 2 {
                let [re, im] = line.get::<S>(k);
                let [other_re, other_im] = line.get::<S>((n - k) % n);
                let to = to.add(2 * k * S::LANES);
                S::store(to, S::add(re, other_re));
                S::store(to.add(S::LANES), S::sub(im, other_im));
                if second.is_some() {
                    let to = to.add(row);
                    S::store(to, S::add(im, other_im));
                    S::store(to.add(S::LANES), S::sub(other_re, re));
                }
            }
        }
    }

    /// A box of this size from its frequencies, to a patch; returns the pitch.
    ///
    /// # Safety
    /// The processor has the features of `S`; the points can be read, and the patch has room for
    /// all frequencies.
    #[inline(always)]
    unsafe fn inverse<S: Simd>(
        self,
        from: *const f32,
        layout: Points,
        size: [usize; 3],
        patch: *mut f32,
    ) -> [usize; 3] {
        let [planes, rows, n] = self.n;
        let row = self.row() * S::LANES;
        let scale = 1.0 / (TWICE * planes * rows * n) as f32;
        // SAFETY: guaranteed by the caller.
        unsafe {
            for w in 0..=n / 2 {
                self.inverse_column::<S>(from, layout, w, size, patch);
            }
            for d in 0..size[0] {
                for h in (0..size[1]).step_by(2) {
                    let first = patch.add((d * rows + h) * row);
                    let second = (h + 1 < size[1]).then(|| first.add(row));
                    let pair = Halves {
                        first,
                        second: second.map(<*mut f32>::cast_const),
                        n,
                    };
                    let to = Lines {
                        first,
                        second,
                        limit: size[2],
                        scale,
                    };
                    transform::<S>(n, Turned(pair), n, Turned(to));
                }
            }
        }
        [rows * row, row, S::LANES]
    }

    /// Along D and H at one frequency along W, from points to the patch.
    ///
    /// # Safety
    /// As for [`FourierTile::inverse`].
    #[inline(always)]
    unsafe fn inverse_column<S: Simd>(
        self,
        from: *const f32,
        layout: Points,
        w: usize,
        size: [usize; 3],
        patch: *mut f32,
    ) {
        let [planes, rows, _] = self.n;
        let (stored, first) = (self.stored(w), self.first_point(w));
        let row = self.row() * S::LANES;
        let fold = if stored < rows { rows } else { 2 * rows };
        // SAFETY: guaranteed by the caller.
        unsafe {
            let column = patch.add(2 * w * S::LANES);
            if planes == 1 {
                let feed = PointLine::new(from, layout, first, 1);
                let line = Line::new(column, row, size[1]);
                return transform::<S>(rows, Turned(Mirrored { feed, fold }), rows, Turned(line));
            }
            for h in 0..stored {
                let feed = PointLine::new(from, layout, first + h, stored);
                let line = Line::new(column.add(h * row), rows * row, size[0]);
                transform::<S>(planes, Turned(feed), planes, Turned(line));
            }
            for d in 0..size[0] {
                let line = Line::new(column.add(d * rows * row), row, size[1]);
                let feed = Mirrored { feed: line, fold };
                transform::<S>(rows, Turned(feed), rows, Turned(line));
            }
        }
    }
}

impl Tile for FourierTile {
    type Patch = Room<{ TILE_MAX * LANES_MAX }>;
    type Block = Room<{ TAPS_MAX * LANES_MAX * LANES_MAX }>;

    #[inline(always)]
    fn window(self) -> [usize; 3] {
        self.n
    }

    #[inline(always)]
    fn outputs(self) -> [usize; 3] {
        FourierTile::outputs(self)
    }

    #[inline(always)]
    fn taps(self) -> [usize; 3] {
        self.k
    }

    #[inline(always)]
    unsafe fn inputs<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
        lanes: usize,
    ) {
        let put = PutRows {
            to,
            part: layout.part,
            second: layout.row / 2,
            lanes,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.forward::<S>(from, pitch, self.n, put, layout) }
    }

    #[inline(always)]
    unsafe fn gradients<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
    ) {
        let put = PutRow {
            to,
            part: layout.part,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.forward::<S>(from, pitch, self.outputs(), put, layout) }
    }

    #[inline(always)]
    unsafe fn weights<S: Simd>(
        self,
        from: *const f32,
        pitch: [usize; 3],
        to: *mut f32,
        layout: Points,
    ) {
        let put = PutRow {
            to,
            part: layout.part,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.forward::<S>(from, pitch, self.k, put, layout) }
    }

    #[inline(always)]
    unsafe fn scatter<S: Simd>(
        self,
        from: *const f32,
        layout: Points,
        patch: *mut f32,
    ) -> [usize; 3] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.inverse::<S>(from, layout, self.outputs(), patch) }
    }

    #[inline(always)]
    unsafe fn fold<S: Simd>(self, from: *const f32, layout: Points, patch: *mut f32) -> [usize; 3] {
        // SAFETY: guaranteed by the caller.
        unsafe { self.inverse::<S>(from, layout, self.k, patch) }
    }
}

/// How a point is written.
trait Put: Copy {
    /// # Safety
    /// The processor has the features of `S`; the point lies `at` elements from the first and no
    /// other thread accesses it.
    unsafe fn put<S: Simd>(self, at: usize, a: Complex<S>);
}

/// Two rows, (re, im) and (im, -re).
#[derive(Clone, Copy)]
struct PutRows {
    to: *mut f32,
    part: usize,
    /// Elements from the first row to the second.
    second: usize,
    /// What follows the channels is another part.
    lanes: usize,
}

impl Put for PutRows {
    #[inline(always)]
    unsafe fn put<S: Simd>(self, at: usize, [re, im]: Complex<S>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let to = self.to.add(at);
            let minus = S::sub(S::splat(0.0), re);
            let second = to.add(self.second);
            if self.lanes == S::LANES {
                S::store(to, re);
                S::store(to.add(self.part), im);
                S::store(second, im);
                S::store(second.add(self.part), minus);
            } else {
                S::store_part(to, self.lanes, re);
                S::store_part(to.add(self.part), self.lanes, im);
                S::store_part(second, self.lanes, im);
                S::store_part(second.add(self.part), self.lanes, minus);
            }
        }
    }
}

/// Both parts, each in a row of whole vectors.
#[derive(Clone, Copy)]
struct PutRow {
    to: *mut f32,
    part: usize,
}

impl Put for PutRow {
    #[inline(always)]
    unsafe fn put<S: Simd>(self, at: usize, [re, im]: Complex<S>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let to = self.to.add(at);
            S::store(to, re);
            S::store(to.add(self.part), im);
        }
    }
}

/// A line of points, of which the first ones are stored.
#[derive(Clone, Copy)]
struct PutLine<P> {
    put: P,
    first: usize,
    step: usize,
    limit: usize,
    layout: Points,
}

impl<P: Put> Sink for PutLine<P> {
    #[inline(always)]
    unsafe fn put<S: Simd>(self, k: usize, a: Complex<S>) {
        if k < self.limit {
            let at = (self.first + k * self.step) * self.layout.point;
            // SAFETY: guaranteed by the caller.
            unsafe { self.put.put::<S>(at, a) }
        }
    }
}

/// Complex vectors at a distance, of which the first ones are stored.
#[derive(Clone, Copy)]
struct Line {
    at: *mut f32,
    step: usize,
    limit: usize,
}

impl Line {
    #[inline(always)]
    fn new(at: *mut f32, step: usize, limit: usize) -> Line {
        Line { at, step, limit }
    }
}

impl Feed for Line {
    #[inline(always)]
    unsafe fn get<S: Simd>(self, n: usize) -> Complex<S> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let at = self.at.add(n * self.step);
            [S::load(at), S::load(at.add(S::LANES))]
        }
    }
}

impl Sink for Line {
    #[inline(always)]
    unsafe fn put<S: Simd>(self, k: usize, [re, im]: Complex<S>) {
        if k < self.limit {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let at = self.at.add(k * self.step);
                S::store(at, re);
                S::store(at.add(S::LANES), im);
            }
        }
    }
}

/// Two real lines as one.
#[derive(Clone, Copy)]
struct Pair {
    first: *const f32,
    step: usize,
    second: *const f32,
    second_step: usize,
}

impl Feed for Pair {
    #[inline(always)]
    unsafe fn get<S: Simd>(self, n: usize) -> Complex<S> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let second = self.second.add(n * self.second_step);
            [S::load(self.first.add(n * self.step)), S::load(second)]
        }
    }
}

/// Points at a distance.
#[derive(Clone, Copy)]
struct PointLine {
    at: *const f32,
    step: usize,
    part: usize,
}

impl PointLine {
    /// Points of a tile from `first` on.
    ///
    /// # Safety
    /// The tile has the first point.
    #[inline(always)]
    unsafe fn new(from: *const f32, layout: Points, first: usize, step: usize) -> PointLine {
        PointLine {
            // SAFETY: guaranteed by the caller.
            at: unsafe { from.add(first * layout.point) },
            step: step * layout.point,
            part: layout.part,
        }
    }
}

impl Feed for PointLine {
    #[inline(always)]
    unsafe fn get<S: Simd>(self, n: usize) -> Complex<S> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let at = self.at.add(n * self.step);
            [S::load(at), S::load(at.add(self.part))]
        }
    }
}

/// A line of which points beyond half of `fold` are the conjugates of those before.
#[derive(Clone, Copy)]
struct Mirrored<F> {
    feed: F,
    fold: usize,
}

impl<F: Feed> Feed for Mirrored<F> {
    #[inline(always)]
    unsafe fn get<S: Simd>(self, n: usize) -> Complex<S> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if 2 * n > self.fold {
                let [re, im] = self.feed.get::<S>(self.fold - n);
                [re, S::sub(S::splat(0.0), im)]
            } else {
                self.feed.get::<S>(n)
            }
        }
    }
}

/// The frequencies of two real lines, or of one, as those of one line.
#[derive(Clone, Copy)]
struct Halves {
    first: *const f32,
    second: Option<*const f32>,
    n: usize,
}

impl Feed for Halves {
    #[inline(always)]
    unsafe fn get<S: Simd>(self, n: usize) -> Complex<S> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let [re, im] = self.of::<S>(self.first, n);
            match self.second {
                Some(second) => {
                    let [second_re, second_im] = self.of::<S>(second, n);
                    [S::sub(re, second_im), S::add(im, second_re)]
                }
                None => [re, im],
            }
        }
    }
}

impl Halves {
    /// # Safety
    /// As for [`Feed::get`], of this line.
    #[inline(always)]
    unsafe fn of<S: Simd>(self, line: *const f32, n: usize) -> Complex<S> {
        let line = Line::new(line.cast_mut(), 2 * S::LANES, 0);
        let fold = self.n;
        // SAFETY: guaranteed by the caller.
        unsafe { Mirrored { feed: line, fold }.get::<S>(n) }
    }
}

/// Two real lines, or one, whose first elements are stored.
#[derive(Clone, Copy)]
struct Lines {
    first: *mut f32,
    second: Option<*mut f32>,
    limit: usize,
    scale: f32,
}

impl Sink for Lines {
    #[inline(always)]
    unsafe fn put<S: Simd>(self, k: usize, [re, im]: Complex<S>) {
        if k < self.limit {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let (at, scale) = (k * S::LANES, S::splat(self.scale));
                S::store(self.first.add(at), S::mul(re, scale));
                if let Some(second) = self.second {
                    S::store(second.add(at), S::mul(im, scale));
                }
            }
        }
    }
}

/// Real and imaginary parts exchanged: the inverse transform is that of both sides.
#[derive(Clone, Copy)]
struct Turned<T>(T);

impl<F: Feed> Feed for Turned<F> {
    #[inline(always)]
    unsafe fn get<S: Simd>(self, n: usize) -> Complex<S> {
        // SAFETY: guaranteed by the caller.
        let [re, im] = unsafe { self.0.get::<S>(n) };
        [im, re]
    }
}

impl<P: Sink> Sink for Turned<P> {
    #[inline(always)]
    unsafe fn put<S: Simd>(self, k: usize, [im, re]: Complex<S>) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.0.put::<S>(k, [re, im]) }
    }
}
