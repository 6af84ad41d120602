//! Embeddings, positions and attention.

use super::*;

/// Flops of a number of matrix products over all heads.
fn attention(q: &View, k: &View, products: usize) -> u128 {
    let [_, d, h, w, _] = k.extent;
    each(q, 2).saturating_mul(product(&[products, d, h, w]))
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
        } => Descriptor::new("attention_forward", attention(q, k, 2), inputs(q, k, v))
            .and([write("y", y).like("q", q)])
            .heads(*heads, q, k)
            .cost(Cost::Linear {
                pass: Pass::Forward,
            })
            .layout(Layout::Sequences {
                inputs: [q, k, v],
                y,
            })
            .constant(Constant::Number("heads", *heads))
            .constant(Constant::Flag("causal", *causal)),
        Kernel::AttentionBackward { .. } => attention_backward(kernel),
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
        accumulate,
    } = kernel
    else {
        panic!("{kernel:?} is described elsewhere");
    };
    let [to_q, to_k, to_v] = *accumulate;
    let wanted = [dq, dk, dv].map(Option::is_some);
    let count = wanted.into_iter().filter(|wanted| *wanted).count();
    let flops = attention(q, k, 2 + count);
    let gradient = |name, view, accumulate, of: &'static str, like| {
        result(name, view, accumulate).like(of, like)
    };
    let dq = dq.iter().map(|dq| gradient("dq", dq, to_q, "q", q));
    let dk = dk.iter().map(|dk| gradient("dk", dk, to_k, "k", k));
    let dv = dv.iter().map(|dv| gradient("dv", dv, to_v, "k", k));
    // Half of its products are of each kind.
    let pass = Pass::BackwardData;
    Descriptor::new("attention_backward", flops, inputs(q, k, v))
        .and([linear("dy", dy).like("q", q)])
        .and(dq.chain(dk).chain(dv))
        .heads(*heads, q, k)
        .require(count > 0, || "no gradient is wanted".to_owned())
        .cost(Cost::Linear { pass })
        .layout(Layout::Sequences {
            inputs: [q, k, v],
            y: dy,
        })
        .constant(Constant::Number("heads", *heads))
        .constant(Constant::Flag("causal", *causal))
        .constant(Constant::Flags("accumulate", accumulate))
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

impl Descriptor<'_> {
    fn rows(self, name: &str, w: &View) -> Self {
        self.require(w.extent[3] > 0, || format!("{name} {w} has no row"))
    }

    fn heads(self, heads: usize, q: &View, k: &View) -> Self {
        let channels = q.extent[4];
        self.require(heads > 0 && channels.is_multiple_of(heads), || {
            format!("{channels} channels do not split into {heads} heads")
        })
        .require(!k.extent[1..4].contains(&0), || {
            format!("k {k} has no position")
        })
    }
}
