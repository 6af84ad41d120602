//! Attention: each head of each sample is computed by one thread, in blocks of positions.
//!
//! Products read positions at one distance. Those of a volume within a halo have several, so a head's part of such a box
//! is packed into the scratch.

use crate::grid::{Call, Canceled, Grid, Shared, View, ViewMut, Work};
use crate::rows::Rows;
use crate::sequence::matrix::{Factor, Product, Transpose};
use crate::sequence::scores::{Added, Slopes, Softmax};
use crate::simd::Level;
use crate::team::TeamKind;
use partita_space::{AttentionWindow, ScoreRows};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Positions of q whose scores are stored at a time.
const BLOCK: usize = 48;
/// The number of heads, and what attends to what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Number of heads; each has the same number of channels.
    pub heads: usize,
    /// Causal mask: position `i` of q attends to positions 0 to `i`.
    pub causal: bool,
    /// Windows within which positions attend to each other.
    pub window: Option<AttentionWindow>,
    /// Window whose distances a bias has rows for; none for a row per pair.
    pub table: Option<[usize; 3]>,
}

impl Heads {
    /// Positions along D, H, W that attend to each other, of a tensor of these extents.
    fn own(&self, extent: [usize; 3]) -> [usize; 3] {
        self.window.map_or(extent, |window| window.extent)
    }

    /// Windows of a tensor of these extents.
    fn windows(&self, extent: [usize; 3]) -> usize {
        self.window.map_or(1, |window| window.count(extent))
    }
}

/// Elements of scratch for q and k of these extents and channels; see [`Call`].
pub fn attention_scratch(
    team: TeamKind,
    heads: &Heads,
    extents: [[usize; 3]; 2],
    channels: usize,
    backward: bool,
) -> usize {
    team.threads * Scratch::new(heads, extents, channels, backward).elements()
}

/// Scratch of one thread: transposed keys and values, scores, gradients of scores, and packed boxes.
#[derive(Clone, Copy)]
struct Scratch {
    turned: usize,
    scores: usize,
    /// Elements of a head's part of q and of k; none where they lie along W.
    packed: [usize; 2],
    /// Numbers of the parts of the tensor, for each position of a window.
    parts: usize,
    backward: bool,
}

impl Scratch {
    fn new(heads: &Heads, extents: [[usize; 3]; 2], channels: usize, backward: bool) -> Self {
        let extents = extents.map(|extent| heads.own(extent));
        let [outer, inner] = extents.map(|extent| extent.iter().product::<usize>());
        let of_head = channels / heads.heads;
        let packed = |extent: [usize; 3], positions| {
            if heads.window.is_none() && extent[..2] == [1; 2] {
                0
            } else {
                positions * of_head
            }
        };
        Self {
            turned: of_head * inner,
            scores: outer.min(BLOCK) * inner,
            packed: [packed(extents[0], outer), packed(extents[1], inner)],
            parts: heads.window.map_or(0, |window| window.volume()),
            backward,
        }
    }

    /// Of what products need.
    fn of_products(&self) -> usize {
        (self.turned + self.scores) * (1 + usize::from(self.backward))
    }

    fn elements(&self) -> usize {
        // Those of q are q, y and the gradient of q; those of k are k, v and their gradients.
        let [of_q, of_k] = self.packed;
        self.of_products() + self.parts + 3 * of_q + 4 * of_k
    }
}

/// y = softmax(q k' / sqrt(K)) v of each head of K channels.
///
/// Shapes: q and y are (N, D, H, W, C), k and v of other D, H and W. Counts two products of matrices, masked
/// pairs included. Errors of both kernels of this module: [`Canceled`]. They panic if boxes do not fit.
pub fn attention_forward(
    call: &mut Call,
    heads: Heads,
    ([q, k, v], bias): ([View; 3], Option<&[f32]>),
    y: ViewMut,
) -> Result<Work, Canceled> {
    let bytes = [q, k, v].map(|x| x.grid.bytes()).iter().sum::<u64>() + y.grid.bytes();
    let inputs = ([q, k, v], bias);
    let pass = Pass::new(heads, inputs, Rows::from(y), [None; 3], [false; 3]);
    let flops = pass.all(call, (2, false), None, Head::forward)?;
    Ok(Work { flops, bytes })
}

/// Gradients of scores, added over samples and windows to the rows of the gradient of a bias.
///
/// Shapes: bias and gradient are (rows, heads). Counts two products of matrices.
pub fn attention_backward_bias(
    call: &mut Call,
    heads: Heads,
    ([q, k, v], bias): ([View; 3], Option<&[f32]>),
    dy: View,
    (dbias, accumulate): (&mut [f32], bool),
) -> Result<Work, Canceled> {
    let bytes = [q, k, v, dy].map(|x| x.grid.bytes()).iter().sum::<u64>();
    let inputs = ([q, k, v], bias);
    let pass = Pass::new(heads, inputs, Rows::from(dy), [None; 3], [false; 3]);
    pass.check_rows(dbias);
    if !accumulate {
        dbias.fill(0.0);
    }
    let to = Some(Shared(dbias.as_mut_ptr()));
    let flops = pass.all(call, (2, true), to, Head::backward_bias)?;
    Ok(Work { flops, bytes })
}

/// The requested gradients of q, k and v; each accumulates if its flag is set.
///
/// Counts two products of matrices, and one for each gradient.
pub fn attention_backward(
    call: &mut Call,
    heads: Heads,
    ([q, k, v], bias): ([View; 3], Option<&[f32]>),
    dy: View,
    wanted: [Option<ViewMut>; 3],
    accumulate: [bool; 3],
) -> Result<Work, Canceled> {
    let mut bytes: u64 = [q, k, v, dy].map(|x| x.grid.bytes()).iter().sum();
    let wanted = wanted.map(|gradient| gradient.map(Rows::from));
    for (gradient, adds) in wanted.iter().zip(accumulate) {
        bytes += gradient.map_or(0, |dx| dx.grid.bytes()) * (1 + u64::from(adds));
    }
    for (gradient, of) in wanted.iter().zip([q, k, v]) {
        gradient.iter().for_each(|dx| dx.grid.assert_like(of.grid));
    }
    let products = 2 + wanted.iter().flatten().count();
    let inputs = ([q, k, v], bias);
    let pass = Pass::new(heads, inputs, Rows::from(dy), wanted, accumulate);
    let flops = pass.all(call, (products, true), None, Head::backward)?;
    Ok(Work { flops, bytes })
}

/// All heads.
struct Pass<'a> {
    heads: Heads,
    inputs: [Rows<'a>; 3],
    bias: Option<&'a [f32]>,
    /// y, or its gradient.
    y: Rows<'a>,
    wanted: [Option<Rows<'a>>; 3],
    accumulate: [bool; 3],
}

/// A row-major matrix of one head; null if it is not requested. Pointers: all rows.
#[derive(Clone, Copy)]
struct Matrix {
    data: *mut f32,
    row: usize,
}

impl Matrix {
    const NONE: Matrix = Matrix {
        data: std::ptr::null_mut(),
        row: 0,
    };

    /// # Safety
    /// There is the row.
    unsafe fn from(self, row: usize) -> *mut f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { self.data.add(row * self.row) }
    }
}

/// One head of one sample.
///
/// Pointers: the matrices, and scratch as `layout` says; no other thread accesses y or the gradients, whichever
/// are written, or the scratch.
struct Head {
    level: Level,
    causal: bool,
    added: Added,
    /// The column of the gradient of a bias that is of this head.
    column: Option<Shared>,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    y: Matrix,
    gradients: [Matrix; 3],
    accumulate: [bool; 3],
    outer: usize,
    inner: usize,
    channels: usize,
    layout: Scratch,
    scratch: *mut f32,
}

impl<'a> Pass<'a> {
    fn new(
        heads: Heads,
        (inputs, bias): ([View<'a>; 3], Option<&'a [f32]>),
        y: Rows<'a>,
        wanted: [Option<Rows<'a>>; 3],
        accumulate: [bool; 3],
    ) -> Self {
        let [q, k, v] = inputs;
        q.grid.assert_like(y.grid);
        k.grid.assert_like(v.grid);
        assert!(
            q.grid.samples == k.grid.samples
                && q.grid.channels == k.grid.channels
                && q.grid.channels.is_multiple_of(heads.heads)
                && !k.grid.extent.contains(&0),
            "no attention of {:?} to {:?}",
            q.grid,
            k.grid
        );
        let tiles = |window: AttentionWindow| {
            let extents = window.extent.iter().zip(q.grid.extent).zip(window.shift);
            let fits = |((own, all), shift): ((&usize, usize), usize)| {
                shift < *own && all.is_multiple_of(*own)
            };
            q.grid.extent == k.grid.extent && extents.into_iter().all(fits)
        };
        assert!(heads.window.is_none_or(tiles), "{heads:?} of {:?}", q.grid);
        let pass = Self {
            heads,
            inputs: inputs.map(Rows::from),
            bias,
            y,
            wanted,
            accumulate,
        };
        bias.iter().for_each(|bias| pass.check_rows(bias));
        pass
    }

    /// Which row of a bias is of which positions.
    fn rows(&self) -> ScoreRows {
        let own = self.heads.own(self.inputs[1].grid.extent);
        ScoreRows::of(self.heads.table, own.iter().product())
    }

    /// A bias or its gradient has a row for each pair of positions.
    fn check_rows(&self, bias: &[f32]) {
        let [outer, inner] = [0, 1].map(|index| {
            let own = self.heads.own(self.inputs[index].grid.extent);
            own.iter().product::<usize>()
        });
        let rows = self.rows();
        let is_large = match self.heads.table {
            None => true,
            Some(table) => outer == inner && outer <= table.iter().product(),
        };
        let count = rows.count(outer) * self.heads.heads;
        assert!(
            is_large && bias.len() == count,
            "a bias of {count} elements"
        );
    }

    /// Every head of every window, of `products` products, on the threads of the team; each takes one after the other,
    /// and all of one head where they add to the gradient of a bias.
    fn all(
        &self,
        call: &mut Call,
        (products, is_backward): (usize, bool),
        dbias: Option<Shared>,
        of_head: unsafe fn(&Head),
    ) -> Result<u64, Canceled> {
        let [q, k, _] = self.inputs.map(|x| x.grid);
        let extents = [q.extent, k.extent];
        let [outer, inner] = extents.map(|extent| self.heads.own(extent).iter().product::<usize>());
        let layout = Scratch::new(&self.heads, extents, q.channels, is_backward);
        let kind = call.team.kind();
        let needed = kind.threads * layout.elements();
        assert!(call.scratch.len() >= needed, "scratch of {needed} elements");
        let scratch = Shared(call.scratch.as_mut_ptr());
        let count = q.samples * self.heads.windows(q.extent) * self.heads.heads;
        let jobs = dbias.map_or(count, |_| self.heads.heads);
        let flops = (2 * products * outer * inner * (q.channels / self.heads.heads)) as u64;
        let next = AtomicUsize::new(0);
        let each = flops * count.div_ceil(kind.threads) as u64;
        call.team
            .units(call.progress, kind.threads, each, &|thread, poll| {
                loop {
                    let job = next.fetch_add(1, Ordering::Relaxed);
                    if job >= jobs || poll.canceled() {
                        break;
                    }
                    for number in (job..count).step_by(jobs) {
                        // SAFETY: each thread has its part of the scratch, each job its own channels and positions
                        // of boxes that fit each other, and its column of the gradient of a bias; what is written
                        // is borrowed alone.
                        unsafe {
                            let scratch = scratch.get().add(thread * layout.elements());
                            let (head, packed) =
                                self.head((kind.level, number, dbias), layout, scratch);
                            packed.iter().flatten().for_each(|one| one.gather());
                            of_head(&head);
                            packed.iter().flatten().for_each(|one| one.scatter());
                        }
                        poll.tick(flops);
                        if poll.canceled() {
                            break;
                        }
                    }
                }
            })?;
        Ok(flops * count as u64)
    }

    /// What is added to the scores of a head in a window, whose parts are numbered in the scratch.
    ///
    /// # Safety
    /// The scratch has room for the numbers, and is nobody else's.
    unsafe fn added(&self, head: usize, window: usize, parts: *mut f32) -> Added {
        // SAFETY: a bias has a column for each head.
        let bias = |bias: &[f32]| unsafe { bias.as_ptr().add(head) };
        let mut added = Added {
            bias: self.bias.map_or(std::ptr::null(), bias),
            pitch: self.heads.heads,
            rows: self.rows(),
            parts: std::ptr::null(),
            mask: 0.0,
        };
        let Some(windows) = self.heads.window.filter(|one| one.shift != [0; 3]) else {
            return added;
        };
        let (tensor, volume) = (self.inputs[0].grid.extent, windows.volume());
        if windows.part(tensor, window, 0) == windows.part(tensor, window, volume - 1) {
            return added;
        }
        for position in 0..volume {
            let part = windows.part(tensor, window, position);
            // SAFETY: guaranteed by the caller.
            unsafe { *parts.add(position) = part as f32 };
        }
        (added.parts, added.mask) = (parts, windows.mask as f32);
        added
    }

    /// # Safety
    /// There is the head, and the scratch is nobody else's.
    unsafe fn head(
        &self,
        (level, number, dbias): (Level, usize, Option<Shared>),
        layout: Scratch,
        scratch: *mut f32,
    ) -> (Head, [Option<Packed<'a>>; PACKED_MAX]) {
        let (outside, head) = (number / self.heads.heads, number % self.heads.heads);
        let windows = self.heads.windows(self.inputs[0].grid.extent);
        let (n, window) = (outside / windows, outside % windows);
        let channels = self.inputs[0].grid.channels / self.heads.heads;
        let mut packed = [const { None }; PACKED_MAX];
        let mut count = 0;
        // SAFETY: the scratch has numbers of parts and what is packed after what products need.
        let (parts, mut next) = unsafe {
            let parts = scratch.add(layout.of_products());
            (parts, parts.add(layout.parts))
        };
        let mut of = |rows: Rows<'a>, is_written: bool| {
            let whole = rows.grid.extent;
            if self.heads.window.is_none() && is_evenly_apart(rows.grid) {
                return Matrix {
                    // SAFETY: the first element of the head.
                    data: unsafe {
                        rows.start(n * rows.grid.extent[0] * rows.grid.extent[1])
                            .add(head * channels)
                    },
                    row: rows.grid.pitch[3],
                };
            }
            let matrix = Matrix {
                data: next,
                row: channels,
            };
            let extent = self.heads.own(whole);
            // SAFETY: as above.
            next = unsafe { next.add(extent.iter().product::<usize>() * channels) };
            let of_window = |one: AttentionWindow| one.position(whole, window, 0);
            packed[count] = Some(Packed {
                rows,
                n,
                origin: self.heads.window.map_or([0; 3], of_window),
                extent,
                first: head * channels,
                channels,
                matrix,
                is_written,
            });
            count += 1;
            matrix
        };
        let [q, k, v] = self.inputs;
        let [outer, inner] = [q, k].map(|x| self.heads.own(x.grid.extent).iter().product());
        let head = Head {
            level,
            causal: self.heads.causal,
            // SAFETY: as above.
            added: unsafe { self.added(head, window, parts) },
            // SAFETY: a gradient has a column for each head.
            column: dbias.map(|all| Shared(unsafe { all.get().add(head) })),
            q: of(q, false),
            k: of(k, false),
            v: of(v, false),
            y: of(self.y, !layout.backward),
            gradients: self
                .wanted
                .map(|one| one.map_or(Matrix::NONE, |rows| of(rows, true))),
            accumulate: self.accumulate,
            outer,
            inner,
            channels,
            layout,
            scratch,
        };
        (head, packed)
    }
}

/// q, k, v and y, and the gradients of the first three.
const PACKED_MAX: usize = 7;

/// Whether the positions of a sample lie at one distance.
fn is_evenly_apart(grid: &Grid) -> bool {
    let ([d, h, w], pitch) = (grid.extent, grid.pitch);
    (h == 1 || pitch[2] == w * pitch[3]) && (d == 1 || pitch[1] == h * w * pitch[3])
}

/// A head's part of a box in the scratch.
///
/// Pointers: the matrix has all positions, and no other thread accesses it, or a box that is written.
struct Packed<'a> {
    rows: Rows<'a>,
    /// The sample, and the first channel of the head.
    n: usize,
    first: usize,
    channels: usize,
    /// The first position, and how many follow along D, H, W, from the first one of the box again after its last one.
    origin: [usize; 3],
    extent: [usize; 3],
    matrix: Matrix,
    is_written: bool,
}

impl Packed<'_> {
    /// The channels of each position, in the box and in the matrix.
    ///
    /// # Safety
    /// The pointer requirements hold.
    unsafe fn each(&self, copy: impl Fn(*mut f32, *mut f32)) {
        let whole = self.rows.grid.extent;
        let index = |dim: usize, at: usize| {
            let at = self.origin[dim] + at;
            if at < whole[dim] { at } else { at - whole[dim] }
        };
        let [d, h, w] = self.extent;
        for row in 0..d * h {
            let (deep, high) = (index(0, row / h), index(1, row % h));
            let of_box = (self.n * whole[0] + deep) * whole[1] + high;
            for wide in 0..w {
                // SAFETY: positions of the box and of the matrix.
                unsafe {
                    let start = self.rows.start(of_box);
                    let at = index(2, wide) * self.rows.grid.pitch[3] + self.first;
                    copy(start.add(at), self.matrix.from(row * w + wide));
                }
            }
        }
    }

    /// # Safety
    /// As for `each`.
    unsafe fn gather(&self) {
        // SAFETY: guaranteed by the caller; the two do not overlap.
        unsafe { self.each(|from, to| from.copy_to_nonoverlapping(to, self.channels)) };
    }

    /// Copies back what is written.
    ///
    /// # Safety
    /// As for `each`.
    unsafe fn scatter(&self) {
        if self.is_written {
            // SAFETY: guaranteed by the caller; the two do not overlap.
            unsafe { self.each(|to, from| from.copy_to_nonoverlapping(to, self.channels)) };
        }
    }
}

impl Head {
    /// Blocks of positions of q, each with the number of positions that it sees at most.
    fn blocks(&self) -> impl Iterator<Item = (Range<usize>, usize)> {
        (0..self.outer).step_by(BLOCK).map(|first| {
            let last = (first + BLOCK).min(self.outer);
            let seen = if self.causal {
                last.min(self.inner)
            } else {
                self.inner
            };
            (first..last, seen)
        })
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.channels as f64).sqrt()) as f32
    }

    /// Keys or values with positions one after the other.
    ///
    /// # Safety
    /// The pointer requirements of [`Head`] hold, and so it does of `to`, a part of the scratch.
    unsafe fn turn(&self, from: Matrix, to: *mut f32) {
        let transpose = Transpose {
            from: from.data,
            from_row: from.row,
            rows: self.inner,
            columns: self.channels,
            to,
            to_row: self.inner,
        };
        // SAFETY: guaranteed by the caller; the level is the team's.
        unsafe { self.level.run(transpose) };
    }

    /// c = scale * rows b', with b turned.
    ///
    /// # Safety
    /// As for `turn`; c has room for the scores of the rows.
    unsafe fn scores(
        &self,
        rows: (Matrix, &Range<usize>),
        turned: *const f32,
        seen: usize,
        scale: f32,
        c: *mut f32,
    ) {
        let (matrix, range) = rows;
        let product = Product {
            a: Factor {
                // SAFETY: guaranteed by the caller.
                data: unsafe { matrix.from(range.start) },
                row: matrix.row,
                column: 1,
            },
            b: turned,
            b_row: self.inner,
            c,
            c_row: seen,
            rows: range.len(),
            inner: self.channels,
            columns: seen,
            scale,
            add: false,
        };
        // SAFETY: guaranteed by the caller; the level is the team's.
        unsafe { self.level.run(product) };
    }

    /// What each position of a block takes of those that it sees.
    ///
    /// # Safety
    /// As for `scores`.
    unsafe fn shares(&self, block: &Range<usize>, seen: usize, turned: *mut f32, to: *mut f32) {
        let softmax = Softmax {
            scores: to,
            first: block.start,
            rows: block.len(),
            columns: seen,
            causal: self.causal,
            added: self.added,
        };
        // SAFETY: guaranteed by the caller; the level is the team's.
        unsafe {
            self.scores((self.q, block), turned, seen, self.scale(), to);
            self.level.run(softmax);
        }
    }

    /// # Safety
    /// The pointer requirements of [`Head`] hold.
    unsafe fn forward(&self) {
        // SAFETY: the scratch has layout for both.
        let (turned, scores) = (self.scratch, unsafe {
            self.scratch.add(self.layout.turned)
        });
        // SAFETY: the keys have their layout.
        unsafe { self.turn(self.k, turned) };
        for (block, seen) in self.blocks() {
            // SAFETY: blocks of the own matrices.
            unsafe {
                self.shares(&block, seen, turned, scores);
                self.times(
                    (scores, seen, 1),
                    (self.v, seen),
                    block.len(),
                    Target {
                        data: self.y.from(block.start),
                        row: self.y.row,
                        add: false,
                    },
                );
            }
        }
    }

    /// target (+)= a b, with a of the scratch and as many rows of b as a has columns.
    ///
    /// # Safety
    /// As for `turn`; the matrices have these rows and columns.
    unsafe fn times(
        &self,
        (a, row, column): (*const f32, usize, usize),
        (b, inner): (Matrix, usize),
        rows: usize,
        target: Target,
    ) {
        let product = Product {
            a: Factor {
                data: a,
                row,
                column,
            },
            b: b.data,
            b_row: b.row,
            c: target.data,
            c_row: target.row,
            rows,
            inner,
            columns: self.channels,
            scale: 1.0,
            add: target.add,
        };
        // SAFETY: guaranteed by the caller; the level is the team's.
        unsafe { self.level.run(product) };
    }

    /// # Safety
    /// The pointer requirements of [`Head`] hold.
    unsafe fn backward(&self) {
        let Scratch { turned, scores, .. } = self.layout;
        // SAFETY: the scratch has layout for all four.
        let [keys, values, shares, slopes] =
            unsafe { [0, turned, 2 * turned, 2 * turned + scores].map(|at| self.scratch.add(at)) };
        let [dq, dk, dv] = self.gradients;
        // SAFETY: keys and values have their layout.
        unsafe {
            self.turn(self.k, keys);
            self.turn(self.v, values);
        }
        for (gradient, adds) in [(dk, self.accumulate[1]), (dv, self.accumulate[2])] {
            if !adds && !gradient.data.is_null() {
                // SAFETY: guaranteed by the caller.
                unsafe { self.clear(gradient) };
            }
        }
        for (block, seen) in self.blocks() {
            let rows = block.len();
            // SAFETY: blocks of the own matrices.
            unsafe {
                self.shares(&block, seen, keys, shares);
                self.scores((self.y, &block), values, seen, 1.0, slopes);
                if !dv.data.is_null() {
                    let dy = (
                        Matrix {
                            data: self.y.from(block.start),
                            ..self.y
                        },
                        rows,
                    );
                    self.times((shares, 1, seen), dy, seen, Target::added(dv));
                }
                if dq.data.is_null() && dk.data.is_null() {
                    continue;
                }
                self.level.run(Slopes {
                    shares,
                    slopes,
                    rows,
                    columns: seen,
                    scale: self.scale(),
                });
                if !dq.data.is_null() {
                    self.times(
                        (slopes, seen, 1),
                        (self.k, seen),
                        rows,
                        Target {
                            data: dq.from(block.start),
                            row: dq.row,
                            add: self.accumulate[0],
                        },
                    );
                }
                if !dk.data.is_null() {
                    let q = (
                        Matrix {
                            data: self.q.from(block.start),
                            ..self.q
                        },
                        rows,
                    );
                    self.times((slopes, 1, seen), q, seen, Target::added(dk));
                }
            }
        }
    }

    /// Adds the gradients of the scores to the column of the head.
    ///
    /// # Safety
    /// The pointer requirements of [`Head`] hold.
    unsafe fn backward_bias(&self) {
        let Some(column) = self.column else { return };
        let Scratch { turned, scores, .. } = self.layout;
        // SAFETY: the scratch has layout for all four.
        let [keys, values, shares, slopes] =
            unsafe { [0, turned, 2 * turned, 2 * turned + scores].map(|at| self.scratch.add(at)) };
        // SAFETY: keys and values have their layout.
        unsafe {
            self.turn(self.k, keys);
            self.turn(self.v, values);
        }
        for (block, seen) in self.blocks() {
            let rows = block.len();
            // SAFETY: blocks of the own matrices, and rows of the scratch.
            unsafe {
                self.shares(&block, seen, keys, shares);
                self.scores((self.y, &block), values, seen, 1.0, slopes);
                self.level.run(Slopes {
                    shares,
                    slopes,
                    rows,
                    columns: seen,
                    scale: 1.0,
                });
                for (row, i) in block.enumerate() {
                    let slopes = std::slice::from_raw_parts(slopes.add(row * seen), seen);
                    self.added.scatter(i, slopes, column);
                }
            }
        }
    }

    /// Sets all positions of a gradient of keys or values to zero.
    ///
    /// # Safety
    /// As for `turn`.
    unsafe fn clear(&self, gradient: Matrix) {
        for row in 0..self.inner {
            // SAFETY: the channels of the head at each position.
            unsafe { gradient.from(row).write_bytes(0, self.channels) };
        }
    }
}

/// Where a product goes.
struct Target {
    data: *mut f32,
    row: usize,
    add: bool,
}

impl Target {
    fn added(to: Matrix) -> Self {
        Self {
            data: to.data,
            row: to.row,
            add: true,
        }
    }
}
