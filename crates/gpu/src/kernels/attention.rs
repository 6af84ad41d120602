//! Attention, embeddings and positional encoding.

use super::rows::rows;
use crate::arg::{Arg, RawHeads};
use crate::device::KernelError;
use crate::launch::Run;
use crate::queue::Message;
use crate::tensor::Tensor;
use partita_program::fields::{
    AttentionBackward, AttentionBackwardBias, AttentionForward, EmbeddingBackward,
    EmbeddingForward, PositionEmbeddingBackward, PositionEmbeddingForward, Positions,
};
use partita_program::{Distribution, Dtype, Fields, Kernel};
use partita_space::AttentionWindow;

pub(super) fn execute(kernel: &Kernel, run: &mut Run<'_>) -> Result<(), KernelError> {
    match kernel.fields() {
        Fields::EmbeddingForward(of) => embedding_forward(of, run),
        Fields::EmbeddingBackward(of) => embedding_backward(of, run),
        // They need no workspace, and measuring one knows no place of a rank.
        Fields::Positions(_)
        | Fields::PositionEmbeddingForward(_)
        | Fields::PositionEmbeddingBackward(_)
            if run.target.is_none() =>
        {
            Ok(())
        }
        Fields::Positions(of) => positional_encoding(of, run),
        Fields::PositionEmbeddingForward(of) => position_embedding(of, run),
        Fields::PositionEmbeddingBackward(of) => position_embedding_backward(of, run),
        Fields::AttentionForward(of) => forward(of, run),
        Fields::AttentionBackward(of) => backward(of, run),
        Fields::AttentionBackwardBias(of) => bias_backward(of, run),
        _ => panic!("{} does not work on sequences", kernel.name()),
    }
}

fn positional_encoding(of: Positions<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let [corner, _] = placed(of.distribution, of.halo_low, run);
    let [x, y] = [of.x, of.y].map(|view| run.tensor(view));
    let args = [
        Arg::from(&x),
        Arg::from(&y),
        Arg::Extent(y.raw_extent()),
        corner,
        Arg::Uint(of.distribution.shape[4] as u32),
    ];
    run.elements("positions", &args, &y)
}

fn position_embedding(
    of: PositionEmbeddingForward<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [corner, whole] = placed(of.distribution, of.halo_low, run);
    let [x, w, y] = [of.x, of.w, of.y].map(|view| run.tensor(view));
    let args = [
        Arg::from(&x),
        Arg::from(&w),
        Arg::from(&y),
        Arg::Extent(y.raw_extent()),
        corner,
        whole,
        Arg::Uint(w.extent[3] as u32),
    ];
    run.elements("position_embedding_forward", &args, &y)
}

fn position_embedding_backward(
    of: PositionEmbeddingBackward<'_>,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [corner, whole] = placed(of.distribution, of.halo_low, run);
    let [dy, dw] = [of.dy, of.dw].map(|view| run.tensor(view));
    let args = [
        Arg::from(&dy),
        Arg::Extent(dy.raw_extent()),
        Arg::from(&dw),
        Arg::Extent(dw.raw_extent()),
        corner,
        whole,
        Arg::flag(*of.accumulate),
    ];
    let count = dw.extent[3] * dw.extent[4];
    run.items("position_embedding_backward", &args, count)
}

/// Index of the first element of a view in its whole tensor, and the extents of that.
fn placed(distribution: &Distribution, halo_low: &[usize; 5], run: &Run<'_>) -> [Arg; 2] {
    let corner = distribution.corner(halo_low, &run.position.mesh, &run.position.coord);
    let extent = |of: [usize; 5]| Arg::Extent(Tensor::dense(Dtype::F32, 0, of).raw_extent());
    [extent(corner), extent(distribution.shape)]
}

/// Of a class number without a row.
fn no_row(rows: usize) -> Message {
    let last = rows.saturating_sub(1);
    Box::new(move |number| {
        format!("an embedding reads class number {number}; its rows are 0 to {last}")
    })
}

fn embedding_forward(of: EmbeddingForward<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let [x, w, y] = [of.x, of.w, of.y].map(|view| run.tensor(view));
    let count = w.extent[3];
    let [invalid_class, check] = run.invalid_class(no_row(count));
    let args = [
        Arg::from(&x),
        Arg::from(&y),
        Arg::Extent(y.raw_extent()),
        Arg::from(&w),
        Arg::Uint(count as u32),
        invalid_class,
        check,
    ];
    run.elements("embedding_forward", &args, &y)
}

fn embedding_backward(of: EmbeddingBackward<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let [x, dy, dw] = [of.x, of.dy, of.dw].map(|view| run.tensor(view));
    let [.., count, channels] = dw.extent;
    check_classes(&x, count, None, no_row(count), run)?;
    let args = [
        Arg::from(&x),
        Arg::from(&dy),
        Arg::Extent(dy.raw_extent()),
        Arg::from(&dw),
        Arg::Extent(dw.raw_extent()),
        Arg::flag(*of.accumulate),
    ];
    run.items("embedding_backward", &args, count * channels)
}

/// Notes a number of `x` that is neither a class nor ignored; `message` says what is wrong with it.
pub(super) fn check_classes(
    x: &Tensor,
    classes: usize,
    ignore: Option<i64>,
    message: Message,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let [ignores, ignored] = ignored(ignore);
    let [invalid_class, check] = run.invalid_class(message);
    let rest = [
        Arg::dtype(x),
        Arg::Uint(classes as u32),
        ignores,
        ignored,
        invalid_class,
        check,
    ];
    rows("check_classes", &[*x], x, &rest, run)
}

/// Whether a class is ignored, and which.
pub(super) fn ignored(ignore: Option<i64>) -> [Arg; 2] {
    let class = ignore.unwrap_or_default() as f64;
    [Arg::flag(ignore.is_some()), Arg::Double(class)]
}

/// Positions of a sample.
fn positions(of: &Tensor) -> usize {
    of.extent[1..4].iter().product()
}

/// That of attention, or of one of its gradients.
macro_rules! pattern {
    ($of:expr, $run:expr) => {
        Pattern {
            heads: *$of.heads,
            causal: *$of.causal,
            window: *$of.window,
            bias: $of.bias.map(|bias| $run.tensor(&bias)),
            table: *$of.table,
        }
    };
}

/// What attends to what.
struct Pattern {
    heads: usize,
    causal: bool,
    window: Option<AttentionWindow>,
    bias: Option<Tensor>,
    table: Option<[usize; 3]>,
}

impl Pattern {
    /// Positions that attend to each other.
    fn own(&self, of: &Tensor) -> usize {
        let own = |window: &AttentionWindow| window.volume();
        self.window.as_ref().map_or_else(|| positions(of), own)
    }

    /// Windows of a head.
    fn windows(&self, of: &Tensor) -> usize {
        let [_, d, h, w, _] = of.extent;
        let count = |window: &AttentionWindow| window.count([d, h, w]);
        self.window.as_ref().map_or(1, count)
    }

    /// The heads of a sample.
    fn heads_of(&self, q: &Tensor, k: &Tensor, sample: usize) -> RawHeads {
        let channels = q.extent[4] / self.heads.max(1);
        let whole = |all: [usize; 3]| all.map(|one| one as u32);
        let window =
            |of: fn(&AttentionWindow) -> [usize; 3]| whole(self.window.as_ref().map_or([1; 3], of));
        RawHeads {
            groups: (self.heads * self.windows(q)) as u32,
            channels: channels as u32,
            outer: self.own(q) as u32,
            inner: self.own(k) as u32,
            outer_extent: [q.extent[2] as u32, q.extent[3] as u32],
            inner_extent: [k.extent[2] as u32, k.extent[3] as u32],
            causal: i32::from(self.causal),
            sample: sample as u32,
            scale: (1.0 / (channels as f64).sqrt()) as f32,
            windows: self.window.map_or(0, |_| self.windows(q)) as u32,
            window: window(|one| one.extent),
            tensor: whole([q.extent[1], q.extent[2], q.extent[3]]),
            shift: window(|one| one.shift),
            mask: self.window.map_or(0.0, |one| one.mask) as f32,
        }
    }

    /// The window whose distances a bias has rows for, as kernels take it.
    fn distances(&self) -> Arg {
        Arg::Three(self.table.unwrap_or_default().map(|one| one as u32))
    }

    fn table_of(&self, q: &Tensor, k: &Tensor, run: &mut Run<'_>) -> Arg {
        let elements = self.heads * self.windows(q) * self.own(q) * self.own(k);
        Arg::Ulong(run.scratch(Dtype::F32, elements))
    }
}

/// The shares of the positions of k for each position of q and each head, in the table.
fn shares(
    [q, k]: [&Tensor; 2],
    of: RawHeads,
    pattern: &Pattern,
    table: Arg,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let rows = (of.groups * of.outer) as usize;
    products([q, k], of, (of.scale, true), table, run)?;
    let is_shifted = pattern.window.is_some_and(|window| window.shift != [0; 3]);
    if pattern.bias.is_some() || is_shifted {
        let args = [
            Arg::Heads(of),
            // Without a bias any tensor does.
            Arg::from(pattern.bias.as_ref().unwrap_or(q)),
            Arg::flag(pattern.bias.is_some()),
            pattern.distances(),
            table,
        ];
        run.items("attention_add", &args, rows * of.inner as usize)?;
    }
    run.items("attention_softmax", &[Arg::Heads(of), table], rows)
}

fn products(
    [a, b]: [&Tensor; 2],
    of: RawHeads,
    (factor, masks): (f32, bool),
    table: Arg,
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let args = [
        Arg::from(a),
        Arg::from(b),
        Arg::Heads(of),
        Arg::Float(factor),
        Arg::flag(masks),
        table,
    ];
    let pairs = of.groups as usize * of.outer as usize * of.inner as usize;
    run.items("attention_products", &args, pairs)
}

/// Sums over one position of the table times rows of `b`.
fn gather(
    [b, y]: [&Tensor; 2],
    of: RawHeads,
    table: Arg,
    (is_transposed, accumulate): (bool, bool),
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    let args = [
        Arg::from(b),
        Arg::from(y),
        Arg::Heads(of),
        table,
        Arg::flag(is_transposed),
        Arg::flag(accumulate),
    ];
    let rows = if is_transposed { of.inner } else { of.outer };
    let elements = of.groups as usize * rows as usize * of.channels as usize;
    run.items("attention_gather", &args, elements)
}

fn forward(of: AttentionForward<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let pattern = pattern!(of, run);
    let [q, k, v, y] = [of.q, of.k, of.v, of.y].map(|view| run.tensor(view));
    let table = pattern.table_of(&q, &k, run);
    for sample in 0..q.extent[0] {
        let of = pattern.heads_of(&q, &k, sample);
        shares([&q, &k], of, &pattern, table, run)?;
        gather([&v, &y], of, table, (false, false), run)?;
    }
    Ok(())
}

fn backward(kernel: AttentionBackward<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let pattern = pattern!(kernel, run);
    let [q, k, v, dy] = [kernel.q, kernel.k, kernel.v, kernel.dy].map(|view| run.tensor(view));
    let [dq, dk, dv] = [kernel.dq, kernel.dk, kernel.dv].map(|view| run.optional(view.as_ref()));
    let accumulate = kernel.accumulate;
    let [of_shares, of_scores] = [(); 2].map(|()| pattern.table_of(&q, &k, run));
    for sample in 0..q.extent[0] {
        let of = pattern.heads_of(&q, &k, sample);
        shares([&q, &k], of, &pattern, of_shares, run)?;
        if let Some(dv) = &dv {
            gather([&dy, dv], of, of_shares, (true, accumulate[2]), run)?;
        }
        slopes([&dy, &v], of, [of_shares, of_scores], run)?;
        if let Some(dq) = &dq {
            gather([&k, dq], of, of_scores, (false, accumulate[0]), run)?;
        }
        if let Some(dk) = &dk {
            gather([&q, dk], of, of_scores, (true, accumulate[1]), run)?;
        }
    }
    Ok(())
}

/// Gradients of scores, times the scale of the heads.
fn slopes(
    [dy, v]: [&Tensor; 2],
    of: RawHeads,
    [of_shares, of_scores]: [Arg; 2],
    run: &mut Run<'_>,
) -> Result<(), KernelError> {
    products([dy, v], of, (1.0, false), of_scores, run)?;
    let rows = (of.groups * of.outer) as usize;
    let args = [Arg::Heads(of), of_shares, of_scores];
    run.items("attention_softmax_backward", &args, rows)
}

fn bias_backward(kernel: AttentionBackwardBias<'_>, run: &mut Run<'_>) -> Result<(), KernelError> {
    let pattern = pattern!(kernel, run);
    let [q, k, v, dy] = [kernel.q, kernel.k, kernel.v, kernel.dy].map(|view| run.tensor(view));
    let dbias = run.tensor(kernel.dbias);
    let [of_shares, of_scores] = [(); 2].map(|()| pattern.table_of(&q, &k, run));
    for sample in 0..q.extent[0] {
        let scaled = pattern.heads_of(&q, &k, sample);
        let of = RawHeads {
            scale: 1.0,
            ..scaled
        };
        shares([&q, &k], scaled, &pattern, of_shares, run)?;
        slopes([&dy, &v], of, [of_shares, of_scores], run)?;
        let args = [
            Arg::Heads(of),
            Arg::from(&dbias),
            Arg::Extent(dbias.raw_extent()),
            pattern.distances(),
            of_scores,
            Arg::flag(*kernel.accumulate || sample > 0),
        ];
        let elements = dbias.extent[3] * dbias.extent[4];
        run.items("attention_bias_backward", &args, elements)?;
    }
    Ok(())
}
