//! What is due of what works on sequences.

use super::{Play, WHOLE};
use crate::{Kernel, View};
use partita_space::AxisSet;

impl Play<'_, '_> {
    pub(super) fn sequence(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::EmbeddingForward { x, w, y } => {
                self.need_whole(&[x, w]);
                self.columns(w, y);
                self.write(y, WHOLE);
            }
            Kernel::EmbeddingBackward {
                x,
                dy,
                dw,
                accumulate,
            } => {
                self.need_whole(&[x]);
                self.columns(dw, dy);
                let state = self.read(dy).along(self.positions(dy));
                self.put(dw, state, *accumulate);
            }
            Kernel::Positions { x, y, .. } | Kernel::GeluForward { x, y } => {
                self.need_whole(&[x]);
                self.write(y, WHOLE);
            }
            Kernel::GeluBackward {
                x,
                dy,
                dx,
                accumulate,
            } => {
                self.need_whole(&[x]);
                let state = self.read(dy);
                self.put(dx, state, *accumulate);
            }
            Kernel::LayerNormStatistics { .. }
            | Kernel::LayerNormForward { .. }
            | Kernel::LayerNormBackwardStatistics { .. }
            | Kernel::LayerNormBackwardData { .. }
            | Kernel::LayerNormBackwardParameters { .. } => self.layer_norm(kernel),
            Kernel::AttentionForward { q, k, v, y, .. } => {
                self.need_whole(&[q, k, v]);
                self.sequences([q, k, v], y);
                self.write(y, WHOLE);
            }
            Kernel::AttentionBackward {
                q,
                k,
                v,
                dy,
                dq,
                dk,
                dv,
                accumulate,
                ..
            } => {
                self.need_whole(&[q, k, v]);
                self.sequences([q, k, v], dy);
                let state = self.read(dy);
                for (view, accumulate) in [dq, dk, dv].into_iter().zip(accumulate) {
                    view.iter()
                        .for_each(|view| self.put(view, state, *accumulate));
                }
            }
            other => panic!("{} does not work on sequences", other.name()),
        }
    }

    fn layer_norm(&mut self, kernel: &Kernel) {
        match kernel {
            Kernel::LayerNormStatistics { x, sums } => {
                self.need_whole(&[x]);
                let state = WHOLE.along(self.channels(x));
                self.put(sums, state, false);
            }
            Kernel::LayerNormForward {
                x,
                sums,
                gamma,
                beta,
                y,
                ..
            } => {
                self.need_whole(&[x, sums, gamma, beta]);
                self.write(y, WHOLE);
            }
            Kernel::LayerNormBackwardStatistics {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                ..
            } => {
                self.need_whole(&[x, sums, gamma]);
                let state = self.read(dy).along(self.channels(dy));
                self.put(gradient_sums, state, false);
            }
            Kernel::LayerNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                accumulate,
                ..
            } => {
                self.need_whole(&[x, sums, gamma, dy, gradient_sums]);
                self.put(dx, WHOLE, *accumulate);
            }
            Kernel::LayerNormBackwardParameters {
                x,
                sums,
                dy,
                dgamma,
                dbeta,
                accumulate,
                ..
            } => {
                self.need_whole(&[x, sums]);
                let state = self.read(dy).along(self.positions(dy));
                self.put(dgamma, state, *accumulate);
                self.put(dbeta, state, *accumulate);
            }
            other => panic!("{} is no layer norm", other.name()),
        }
    }

    /// Axes that split the channels.
    fn channels(&self, view: &View) -> AxisSet {
        self.axes(view).unwrap_or_default()[4].set()
    }

    /// Rows are whole, and columns lie as the channels do.
    fn columns(&mut self, w: &View, y: &View) {
        let [rows, columns] = self.shares(w);
        let of_y = self.axes(y).unwrap_or_default()[4];
        if !rows.is_empty() || of_y != columns {
            let reason = format!(
                "has its channels on `{of_y}`, and the rows and columns of the weights are on `{rows}` \
                 and `{columns}`"
            );
            self.fault(y, reason);
        }
    }

    /// All channels lie alike, and no rank lacks a part of a sequence.
    fn sequences(&mut self, inputs: [&View; 3], y: &View) {
        let of_y = self.axes(y).unwrap_or_default()[4];
        for view in inputs {
            let axes = self.axes(view).unwrap_or_default();
            if !axes[3].is_empty() || axes[4] != of_y {
                let reason = format!(
                    "has W on `{}` and its channels on `{}`; attention reads whole sequences, its \
                     channels on `{of_y}`",
                    axes[3], axes[4]
                );
                self.fault(view, reason);
            }
        }
    }
}
