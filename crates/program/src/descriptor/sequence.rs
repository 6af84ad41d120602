//! Embeddings, positions and attention.

use super::*;
use partita_space::ScoreRows;

/// Flops of a number of matrix products over all heads.
fn attention(q: &View, k: &View, window: Option<&AttentionWindow>, products: usize) -> u128 {
    let [d, h, w] = window.map_or([k.extent[1], k.extent[2], k.extent[3]], |one| one.extent);
    each(q, 2).saturating_mul(product(&[products, d, h, w]))
}

/// What attends to what.
#[derive(Clone, Copy)]
struct Pattern<'k> {
    heads: usize,
    causal: bool,
    window: Option<&'k AttentionWindow>,
    table: Option<&'k [usize; 3]>,
}

impl<'k> Pattern<'k> {
    /// Extents of a bias of scores or its gradient.
    fn scores(self, [q, k]: [&View; 2]) -> [usize; 5] {
        let of = |view: &View| {
            let volume = product(&view.extent[1..4]);
            let volume = usize::try_from(volume).unwrap_or(usize::MAX);
            self.window.map_or(volume, AttentionWindow::volume)
        };
        let rows = ScoreRows::of(self.table.copied(), of(k)).count(of(q));
        [1, 1, 1, rows, self.heads]
    }

    fn bias(
        self,
        name: &'static str,
        bias: Option<&'k View>,
        of: [&View; 2],
    ) -> Option<Operand<'k>> {
        bias.map(|bias| read(name, bias).of(self.scores(of)))
    }
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::EmbeddingForward { x, w, y } => {
            let operands = [
                read("x", x).of(class_numbers(y)),
                read("w", w).of(table(w, y)),
                write("y", y),
            ];
            Descriptor::new("embedding_forward", 0, operands)
                .rows("w", w)
                .layout(Layout::Table { w, y })
        }
        Kernel::EmbeddingBackward {
            x,
            dy,
            dw,
            accumulate,
        } => {
            let gradient = result("dw", dw, *accumulate).of(table(dw, dy));
            let operands = [
                read("x", x).of(class_numbers(dy)),
                linear("dy", dy),
                gradient.over(Over::Positions(dy)),
            ];
            Descriptor::new("embedding_backward", each(dy, 1), operands)
                .rows("dw", dw)
                .layout(Layout::Table { w: dw, y: dy })
                .accumulates(*accumulate)
        }
        Kernel::Positions { .. }
        | Kernel::PositionEmbeddingForward { .. }
        | Kernel::PositionEmbeddingBackward { .. } => positions(kernel),
        Kernel::AttentionForward {
            q,
            k,
            v,
            y,
            heads,
            causal,
            window,
            bias,
            table,
        } => {
            let pattern = Pattern {
                heads: *heads,
                causal: *causal,
                window: window.as_ref(),
                table: table.as_ref(),
            };
            let flops = attention(q, k, window.as_ref(), 2);
            let scored = pattern.bias("bias", bias.as_ref(), [q, k]);
            Descriptor::new("attention_forward", flops, inputs(q, k, v))
                .and(scored)
                .and([write("y", y).like("q", q)])
                .attention(pattern, [q, k])
                .cost(Cost::Linear {
                    pass: Pass::Forward,
                })
                .layout(Layout::Sequences {
                    inputs: [q, k, v],
                    y,
                    bias: bias.as_ref(),
                })
        }
        Kernel::AttentionBackward { .. } => attention_backward(kernel),
        Kernel::AttentionBackwardBias { .. } => bias_backward(kernel),
        other => panic!("{other:?} is described elsewhere"),
    }
}

/// Rows that are added to positions, given or trained.
fn positions(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::Positions {
            x,
            y,
            distribution,
            halo_low,
        } => {
            let operands = [read("x", x), write("y", y).like("x", x)];
            Descriptor::new("positions", each(y, 1), operands).placed(distribution, halo_low)
        }
        Kernel::PositionEmbeddingForward {
            x,
            w,
            y,
            distribution,
            halo_low,
        } => {
            let operands = [
                read("x", x),
                read("w", w).of(table(w, y)),
                write("y", y).like("x", x),
            ];
            Descriptor::new("position_embedding_forward", each(y, 1), operands)
                .placed(distribution, halo_low)
                .rows("w", w)
                .layout(Layout::Table { w, y })
        }
        Kernel::PositionEmbeddingBackward {
            dy,
            dw,
            distribution,
            halo_low,
            accumulate,
        } => {
            let gradient = result("dw", dw, *accumulate).of(table(dw, dy));
            let operands = [linear("dy", dy), gradient.over(Over::Positions(dy))];
            Descriptor::new("position_embedding_backward", each(dy, 1), operands)
                .placed(distribution, halo_low)
                .rows("dw", dw)
                .layout(Layout::Table { w: dw, y: dy })
                .accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn attention_backward(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::AttentionBackward {
        q,
        k,
        v,
        dy,
        dq,
        dk,
        dv,
        heads,
        causal,
        window,
        bias,
        table,
        accumulate,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let pattern = Pattern {
        heads: *heads,
        causal: *causal,
        window: window.as_ref(),
        table: table.as_ref(),
    };
    let [to_q, to_k, to_v] = *accumulate;
    let wanted = [dq, dk, dv].map(Option::is_some);
    let count = wanted.into_iter().filter(|wanted| *wanted).count();
    let flops = attention(q, k, window.as_ref(), 2 + count);
    let gradient = |name, view, accumulate, of: &'static str, like| {
        result(name, view, accumulate).like(of, like)
    };
    let dq = dq.iter().map(|dq| gradient("dq", dq, to_q, "q", q));
    let dk = dk.iter().map(|dk| gradient("dk", dk, to_k, "k", k));
    let dv = dv.iter().map(|dv| gradient("dv", dv, to_v, "k", k));
    // Half of its products are of each kind.
    let pass = Pass::BackwardData;
    Descriptor::new("attention_backward", flops, inputs(q, k, v))
        .and(pattern.bias("bias", bias.as_ref(), [q, k]))
        .and([linear("dy", dy).like("q", q)])
        .and(dq.chain(dk).chain(dv))
        .attention(pattern, [q, k])
        .require(count > 0, || "no gradient is wanted".to_owned())
        .cost(Cost::Linear { pass })
        .layout(Layout::Sequences {
            inputs: [q, k, v],
            y: dy,
            bias: bias.as_ref(),
        })
        .constant(Constant::Flags("accumulate", accumulate))
}

fn bias_backward(kernel: &Kernel) -> Descriptor<'_> {
    let Kernel::AttentionBackwardBias {
        q,
        k,
        v,
        dy,
        dbias,
        heads,
        causal,
        window,
        bias,
        table,
        accumulate,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let pattern = Pattern {
        heads: *heads,
        causal: *causal,
        window: window.as_ref(),
        table: table.as_ref(),
    };
    let flops = attention(q, k, window.as_ref(), 2);
    let gradient = result("dbias", dbias, *accumulate).of(pattern.scores([q, k]));
    let pass = Pass::BackwardData;
    Descriptor::new("attention_backward_bias", flops, inputs(q, k, v))
        .and(pattern.bias("bias", bias.as_ref(), [q, k]))
        .and([linear("dy", dy).like("q", q)])
        .and([gradient.over(Over::Positions(dy))])
        .attention(pattern, [q, k])
        .cost(Cost::Linear { pass })
        .layout(Layout::Sequences {
            inputs: [q, k, v],
            y: dy,
            bias: Some(dbias),
        })
        .accumulates(*accumulate)
}

/// Extents of the class numbers of a tensor.
fn class_numbers(y: &View) -> [usize; 5] {
    let [n, d, h, w, _] = y.extent;
    [n, d, h, w, 1]
}

/// Extents of an embedding table.
fn table(w: &View, y: &View) -> [usize; 5] {
    [1, 1, 1, w.extent[3], y.extent[4]]
}

fn inputs<'k>(q: &'k View, k: &'k View, v: &'k View) -> [Operand<'k>; 3] {
    let ([n, .., c], [_, d, h, w, _]) = (q.extent, k.extent);
    [
        read("q", q),
        read("k", k).of([n, d, h, w, c]),
        read("v", v).like("k", k),
    ]
}

impl<'k> Descriptor<'k> {
    fn rows(self, name: &str, w: &View) -> Self {
        self.require(w.extent[3] > 0, || format!("{name} {w} has no row"))
    }

    fn attention(self, pattern: Pattern<'k>, [q, k]: [&View; 2]) -> Self {
        let (heads, channels) = (pattern.heads, q.extent[4]);
        let extent = [q.extent[1], q.extent[2], q.extent[3]];
        let tiles = |window: &AttentionWindow| {
            q.extent == k.extent
                && (0..3).all(|dim| {
                    let own = window.extent[dim];
                    window.shift[dim] < own && extent[dim].is_multiple_of(own)
                })
        };
        let mut all = self
            .require(heads > 0 && channels.is_multiple_of(heads), || {
                format!("{channels} channels do not split into {heads} heads")
            })
            .require(!k.extent[1..4].contains(&0), || {
                format!("k {k} has no position")
            })
            .require(pattern.window.is_none_or(tiles), || {
                format!("the windows do not tile q {q} and k {k}")
            })
            .constant(Constant::Number("heads", heads))
            .constant(Constant::Flag("causal", pattern.causal));
        if let Some(window) = pattern.window {
            all = all.constant(Constant::Windows(window));
        }
        if let Some(table) = pattern.table {
            let own = pattern.window.map_or(extent, |window| window.extent);
            let fits = product(&own) <= product(table)
                && (pattern.window.is_some() || q.extent == k.extent);
            all = all
                .require(fits, || format!("the table {table:?} is too small for {q}"))
                .constant(Constant::Extents("table", table));
        }
        all
    }
}
