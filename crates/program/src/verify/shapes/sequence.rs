//! Extents and types of what works on sequences.

use super::{Rules, vector};
use crate::{Kernel, View};

impl Rules<'_> {
    pub(super) fn sequence(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::EmbeddingForward { x, w, y } => self.embedding(x, ("w", w), ("y", y)),
            Kernel::EmbeddingBackward { x, dy, dw, .. } => {
                self.embedding(x, ("dw", dw), ("dy", dy));
            }
            Kernel::Positions { x, y, .. } | Kernel::GeluForward { x, y } => {
                self.floats(&[("x", x), ("y", y)]);
                self.same("y", y, "x", x);
            }
            Kernel::GeluBackward { x, dy, dx, .. } => {
                self.floats(&[("x", x), ("dy", dy), ("dx", dx)]);
                self.same("dy", dy, "x", x);
                self.same("dx", dx, "x", x);
            }
            Kernel::LayerNormStatistics { .. }
            | Kernel::LayerNormForward { .. }
            | Kernel::LayerNormBackwardStatistics { .. }
            | Kernel::LayerNormBackwardData { .. }
            | Kernel::LayerNormBackwardParameters { .. } => self.layer_norm(kernel),
            Kernel::AttentionForward {
                q, k, v, y, heads, ..
            } => self.attention([q, k, v], &[("y", y)], &[], *heads),
            Kernel::AttentionBackward {
                q,
                k,
                v,
                dy,
                dq,
                dk,
                dv,
                heads,
                ..
            } => {
                let of_q = dq.iter().map(|dq| ("dq", dq));
                let of_q: Vec<_> = of_q.chain([("dy", dy)]).collect();
                let of_k = dk.iter().map(|dk| ("dk", dk));
                let of_k: Vec<_> = of_k.chain(dv.iter().map(|dv| ("dv", dv))).collect();
                self.attention([q, k, v], &of_q, &of_k, *heads);
                if [dq, dk, dv].into_iter().all(Option::is_none) {
                    self.shapes.push("no gradient is wanted".to_owned());
                }
            }
            other => panic!("{} does not work on sequences", other.name()),
        }
    }

    fn embedding(&mut self, x: &View, (name, w): (&str, &View), (of, y): (&str, &View)) {
        self.floats(&[("x", x), (name, w), (of, y)]);
        let [n, d, h, wide, channels] = y.extent;
        self.extent("x", x, [n, d, h, wide, 1]);
        self.extent(name, w, [1, 1, 1, w.extent[3], channels]);
        if w.extent[3] == 0 {
            self.shapes.push(format!("{name} {w} has no row"));
        }
    }

    fn layer_norm(&mut self, kernel: &Kernel) {
        let (x, sums, like, vectors, gradient_sums, count) = match kernel {
            Kernel::LayerNormStatistics { x, sums } => (x, sums, vec![], vec![], None, 1),
            Kernel::LayerNormForward {
                x,
                sums,
                gamma,
                beta,
                y,
                count,
                ..
            } => {
                let vectors = vec![("gamma", gamma), ("beta", beta)];
                (x, sums, vec![("y", y)], vectors, None, *count)
            }
            Kernel::LayerNormBackwardStatistics {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                count,
                ..
            } => {
                let vectors = vec![("gamma", gamma)];
                let gradient_sums = Some(gradient_sums);
                (x, sums, vec![("dy", dy)], vectors, gradient_sums, *count)
            }
            Kernel::LayerNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                count,
                ..
            } => {
                let like = vec![("dy", dy), ("dx", dx)];
                let vectors = vec![("gamma", gamma)];
                (x, sums, like, vectors, Some(gradient_sums), *count)
            }
            Kernel::LayerNormBackwardParameters {
                x,
                sums,
                dy,
                dgamma,
                dbeta,
                count,
                ..
            } => {
                let vectors = vec![("dgamma", dgamma), ("dbeta", dbeta)];
                (x, sums, vec![("dy", dy)], vectors, None, *count)
            }
            other => panic!("{} is no layer norm kernel", other.name()),
        };
        self.floats(&[("x", x)]);
        self.floats(&like);
        for (name, view) in like {
            self.same(name, view, "x", x);
        }
        let mut rows = x.extent;
        rows[4] = 2;
        self.sums("sums", sums, rows);
        if let Some(gradient_sums) = gradient_sums {
            self.sums("gradient_sums", gradient_sums, rows);
        }
        for (name, view) in vectors {
            self.floats(&[(name, view)]);
            self.extent(name, view, vector(x.extent[4]));
        }
        self.positive(count);
    }

    fn attention(
        &mut self,
        [q, k, v]: [&View; 3],
        of_q: &[(&str, &View)],
        of_k: &[(&str, &View)],
        heads: usize,
    ) {
        self.floats(&[("q", q), ("k", k), ("v", v)]);
        let [n, _, _, w, c] = q.extent;
        self.extent("q", q, [n, 1, 1, w, c]);
        self.extent("k", k, [n, 1, 1, k.extent[3], c]);
        self.same("v", v, "k", k);
        for (like, (name, view)) in of_q
            .iter()
            .map(|named| (("q", q), named))
            .chain(of_k.iter().map(|named| (("k", k), named)))
        {
            self.floats(&[(name, view)]);
            self.same(name, view, like.0, like.1);
        }
        if heads == 0 || !c.is_multiple_of(heads) {
            self.shapes
                .push(format!("{c} channels do not split into {heads} heads"));
        }
        if k.extent[3] == 0 {
            self.shapes.push(format!("k {k} has no position"));
        }
    }
}
