//! Random kernels on sequences.

use super::Maker;
use partita_program::{Activation, Distribution, Dtype, Kernel, View};
use partita_space::{AttentionWindow, Axis, AxisList, Mesh, Rank, ScoreRows};

impl Maker {
    /// Kernels that work on sequences.
    pub(super) fn sequences(&mut self, mesh: &Mesh, rank: Rank, accumulate: bool) -> Vec<Kernel> {
        let mut kernels = self.embeddings(accumulate);
        kernels.extend(self.layer_norms(accumulate));
        kernels.extend(self.group_norms(accumulate));
        kernels.extend(self.products(accumulate));
        kernels.extend(self.slopes(accumulate));
        kernels.extend(self.softmax(accumulate));
        kernels.push(self.positions(mesh, rank));
        kernels.extend(self.position_embeddings(mesh, rank, accumulate));
        kernels.extend(self.gates(accumulate));
        for _ in 0..2 {
            kernels.extend(self.attention(accumulate));
        }
        kernels
    }

    fn embeddings(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [n, d, h, wide, channels] = extent;
        let rows = self.pick(1, 6);
        let numbers = (0..n * d * h * wide)
            .map(|_| self.draws.between(0, rows - 1) as f64)
            .collect();
        let x = self.bench.put(self.dtype, [n, d, h, wide, 1], numbers);
        let [w, dw] = [0; 2].map(|_| self.dense([1, 1, 1, rows, channels]));
        let [y, dy] = [0; 2].map(|_| self.view(extent));
        vec![
            Kernel::EmbeddingForward { x, w, y },
            Kernel::EmbeddingBackward {
                x,
                dy,
                dw,
                accumulate,
            },
        ]
    }

    /// Sums over rows of `count` channels, around 0.3 and of their squares.
    fn row_sums(&mut self, [n, d, h, w, _]: [usize; 5], count: u64) -> View {
        let rows = n * d * h * w;
        let pairs = (0..rows).flat_map(|_| {
            let mean = 0.3 * self.draws.unit();
            [mean * count as f64, (mean * mean + 0.5) * count as f64]
        });
        let pairs = pairs.collect();
        self.bench.put(Dtype::F64, [n, d, h, w, 2], pairs)
    }

    fn layer_norms(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let rms = extent[3].is_multiple_of(2);
        let channels = extent[4];
        let [x, y, dy, dx] = [0; 4].map(|_| self.view(extent));
        let [gamma, beta, dgamma, dbeta] = [0; 4].map(|_| self.vector(channels));
        // More than its own where other ranks have the rest.
        let count = (channels * self.pick(1, 2)) as u64;
        let [sums, gradient_sums, out] = [0; 3].map(|_| self.row_sums(extent, count));
        let epsilon = 1e-3;
        vec![
            Kernel::LayerNormStatistics { x, sums: out, rms },
            Kernel::LayerNormForward {
                x,
                sums,
                gamma,
                beta,
                y,
                count,
                epsilon,
            },
            Kernel::LayerNormBackwardStatistics {
                x,
                sums,
                gamma,
                dy,
                gradient_sums: out,
                count,
                epsilon,
                rms,
            },
            Kernel::LayerNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                count,
                epsilon,
                accumulate,
            },
            Kernel::LayerNormBackwardParameters {
                x,
                sums,
                dy,
                dgamma,
                dbeta,
                count,
                epsilon,
                accumulate,
            },
        ]
    }

    fn group_norms(&mut self, accumulate: bool) -> Vec<Kernel> {
        let groups = self.pick(1, 3);
        let mut extent = self.extent();
        extent[4] = groups * self.size(&[1, 2, 5, 16]);
        let [n, d, h, w, channels] = extent;
        let [x, y, dy, dx] = [0; 4].map(|_| self.view(extent));
        let [gamma, beta, dgamma, dbeta] = [0; 4].map(|_| self.vector(channels));
        // More than its own where other ranks have the rest.
        let positions = d * h * w * self.pick(1, 2);
        let count = (positions * channels / groups) as u64;
        let [sums, gradient_sums, out] = [0; 3].map(|_| {
            let of_samples = (0..n).flat_map(|_| {
                let means: Vec<f64> = (0..channels).map(|_| 0.3 * self.draws.unit()).collect();
                let squares: Vec<f64> = means.iter().map(|mean| mean * mean + 0.5).collect();
                means.into_iter().chain(squares)
            });
            let all = of_samples.map(|sum| sum * positions as f64).collect();
            self.bench.put(Dtype::F64, [n, 1, 1, 2, channels], all)
        });
        let wanted = self.draws.one_in(2).then_some(out);
        let epsilon = 1e-3;
        vec![
            Kernel::GroupNormStatistics { x, sums: out },
            Kernel::GroupNormForward {
                x,
                sums,
                gamma,
                beta,
                y,
                groups,
                count,
                epsilon,
            },
            Kernel::GroupNormBackwardStatistics {
                x,
                sums,
                dy,
                gradient_sums: wanted,
                dgamma,
                dbeta,
                groups,
                count,
                epsilon,
                accumulate,
            },
            Kernel::GroupNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                groups,
                count,
                epsilon,
                accumulate,
            },
        ]
    }

    fn products(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [n, .., channels] = extent;
        let [a, b, y] = [0; 3].map(|_| self.view(extent));
        let [gate, sum] = [0; 2].map(|_| self.view([n, 1, 1, 1, channels]));
        let [n, d, h, w, _] = extent;
        let [map, channel_sum] = [0; 2].map(|_| self.view([n, d, h, w, 1]));
        let product = |b| Kernel::Multiply {
            a,
            b,
            y,
            accumulate,
        };
        vec![
            product(b),
            product(gate),
            product(map),
            Kernel::MultiplySum {
                a,
                b,
                y: sum,
                accumulate,
            },
            Kernel::MultiplyChannelSum {
                a,
                b,
                y: channel_sum,
                accumulate,
            },
        ]
    }

    fn slopes(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let [x, y, dy, dx] = [0; 4].map(|_| self.view(extent));
        let one = self.draws.one_in(2);
        let count = if one { 1 } else { extent[4] };
        let [slopes, dslopes] = [0; 2].map(|_| self.vector(count));
        vec![
            Kernel::PreluForward { x, slopes, y },
            Kernel::PreluBackwardData {
                x,
                slopes,
                dy,
                dx,
                accumulate,
            },
            Kernel::PreluBackwardSlopes {
                x,
                dy,
                dslopes,
                one,
                accumulate,
            },
        ]
    }

    fn softmax(&mut self, accumulate: bool) -> Vec<Kernel> {
        let extent = self.extent();
        let x = self
            .bench
            .embedded(self.dtype, extent, 4.0, &mut self.draws);
        let [y, dy, dx] = [0; 3].map(|_| self.view(extent));
        vec![
            Kernel::SoftmaxForward { x, y },
            Kernel::SoftmaxBackward {
                y,
                dy,
                dx,
                accumulate,
            },
        ]
    }

    fn positions(&mut self, mesh: &Mesh, rank: Rank) -> Kernel {
        let channels = self.draws.pick(&[4, 7, 34]);
        let distribution = Distribution {
            shape: [4, 1, 1, 9, channels],
            axes: [Some(Axis::Data), None, None, Some(Axis::Height), None].map(AxisList::from),
            micro: None,
            submesh: None,
        };
        let extent = distribution.owned(mesh, &mesh.coord(rank)).shape();
        let [x, y] = [0; 2].map(|_| self.view(extent));
        Kernel::Positions {
            x,
            y,
            distribution,
            halo_low: [0; 5],
        }
    }

    fn position_embeddings(&mut self, mesh: &Mesh, rank: Rank, accumulate: bool) -> [Kernel; 2] {
        let channels = self.draws.pick(&[4, 7, 34]);
        let distribution = Distribution {
            shape: [4, 3, 2, 9, channels],
            axes: [Some(Axis::Data), None, None, Some(Axis::Height), None].map(AxisList::from),
            micro: None,
            submesh: None,
        };
        let extent = distribution.owned(mesh, &mesh.coord(rank)).shape();
        let [x, y, dy] = [0; 3].map(|_| self.view(extent));
        let rows = self.pick(1, 3 * 2 * 9);
        let [w, dw] = [0; 2].map(|_| self.dense([1, 1, 1, rows, channels]));
        let halo_low = [0; 5];
        [
            Kernel::PositionEmbeddingForward {
                x,
                w,
                y,
                distribution,
                halo_low,
            },
            Kernel::PositionEmbeddingBackward {
                dy,
                dw,
                distribution,
                halo_low,
                accumulate,
            },
        ]
    }

    fn gates(&mut self, accumulate: bool) -> Vec<Kernel> {
        let kernels = Activation::ALL.map(|function| self.gate(function, accumulate));
        kernels.into_iter().flatten().collect()
    }

    fn gate(&mut self, function: Activation, accumulate: bool) -> [Kernel; 2] {
        let extent = self.extent();
        let y = self.view(extent);
        let x = self
            .bench
            .embedded(self.dtype, extent, 4.0, &mut self.draws);
        let [dy, dx] = [0; 2].map(|_| self.view(extent));
        [
            Kernel::ActivationForward { function, x, y },
            Kernel::ActivationBackward {
                function,
                x,
                dy,
                dx,
                accumulate,
            },
        ]
    }

    fn attention(&mut self, accumulate: bool) -> Vec<Kernel> {
        let (heads, of_head) = (self.pick(1, 3), self.size(&[1, 2, 5, 8, 16, 20]));
        let n = self.pick(1, 3);
        let [outer, inner] = [0; 2].map(|_| self.size(&[1, 2, 7, 16, 19, 40]));
        // Of volumes in one of two.
        let rows = if self.draws.one_in(2) { 3 } else { 1 };
        let mut of = |wide: usize| {
            let [d, h] = [0; 2].map(|_| self.pick(1, rows));
            [n, d, h, wide.div_ceil(d * h), heads * of_head]
        };
        let (of_q, of_k) = (of(outer), of(inner));
        let [q, y, dy, dq] = [0; 4].map(|_| self.view(of_q));
        let [k, v, dk, dv] = [0; 4].map(|_| self.view(of_k));
        let causal = self.draws.one_in(2);
        let pattern = (heads, causal, None);
        let mut kernels = Self::attended([q, y, dy, dq], [k, v, dk, dv], pattern, accumulate);
        kernels.extend(self.biased_attention(accumulate));
        kernels
    }

    /// With windows in one of two, and with a bias.
    fn biased_attention(&mut self, accumulate: bool) -> Vec<Kernel> {
        let (heads, of_head) = (self.pick(1, 3), self.size(&[1, 2, 5, 8, 16]));
        let n = self.pick(1, 3);
        let has_windows = self.draws.one_in(2);
        let own = [0; 3].map(|_| self.pick(1, 4));
        let counts = [0; 3].map(|_| if has_windows { self.pick(1, 3) } else { 1 });
        let [d, h, w] = [0, 1, 2].map(|dim| own[dim] * counts[dim]);
        let window = has_windows.then(|| AttentionWindow {
            extent: own,
            shift: own.map(|own| self.draws.between(0, own - 1)),
            mask: -1.5,
        });
        let table = self
            .draws
            .one_in(2)
            .then(|| own.map(|own| own + self.draws.between(0, 1)));
        let volume = own.iter().product();
        let rows = ScoreRows::of(table, volume).count(volume);
        let extent = [n, d, h, w, heads * of_head];
        let [q, y, dy, dq] = [0; 4].map(|_| self.view(extent));
        let [k, v, dk, dv] = [0; 4].map(|_| self.view(extent));
        let [scores, dbias] = [0; 2].map(|_| self.dense([1, 1, 1, rows, heads]));
        let causal = !has_windows && self.draws.one_in(2);
        let pattern = (heads, causal, window);
        let mut kernels = Self::attended([q, y, dy, dq], [k, v, dk, dv], pattern, accumulate);
        for kernel in &mut kernels {
            if let Kernel::AttentionForward {
                bias, table: own, ..
            }
            | Kernel::AttentionBackward {
                bias, table: own, ..
            } = kernel
            {
                (*bias, *own) = (Some(scores), table);
            }
        }
        kernels.push(Kernel::AttentionBackwardBias {
            q,
            k,
            v,
            dy,
            dbias,
            heads,
            causal,
            window,
            bias: Some(scores),
            table,
            accumulate,
        });
        kernels
    }

    fn attended(
        [q, y, dy, dq]: [View; 4],
        [k, v, dk, dv]: [View; 4],
        (heads, causal, window): (usize, bool, Option<AttentionWindow>),
        accumulate: bool,
    ) -> Vec<Kernel> {
        let (bias, table) = (None, None);
        let backward = |wanted: [bool; 3], accumulate| Kernel::AttentionBackward {
            q,
            k,
            v,
            dy,
            dq: wanted[0].then_some(dq),
            dk: wanted[1].then_some(dk),
            dv: wanted[2].then_some(dv),
            heads,
            causal,
            window,
            bias,
            table,
            accumulate,
        };
        vec![
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
            },
            backward([true; 3], [accumulate; 3]),
            backward([true, false, true], [accumulate, false, !accumulate]),
            backward([false, true, false], [false, accumulate, false]),
        ]
    }
}
