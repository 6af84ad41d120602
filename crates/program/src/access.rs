use crate::{BufferId, Kernel, View};
use std::collections::HashMap;

/// How a kernel touches a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Needs the contents.
    Read,
    /// Sets every element without looking.
    Write,
    /// Needs the contents and changes them.
    Update,
}

impl Access {
    /// Whether contents from before are needed.
    pub fn reads(self) -> bool {
        match self {
            Access::Read | Access::Update => true,
            Access::Write => false,
        }
    }

    /// Whether contents change.
    pub fn writes(self) -> bool {
        match self {
            Access::Write | Access::Update => true,
            Access::Read => false,
        }
    }
}

use Access::{Read, Update, Write};

fn target(accumulate: bool) -> Access {
    if accumulate { Update } else { Write }
}

/// Calls `$f` with every view of one kernel and how it is touched. `$part` does the same for a part of
/// a fused kernel. One list for both kinds of reference; `$iter` is `iter` or `iter_mut`.
macro_rules! operands {
    ($kernel:expr, $f:ident, $iter:ident, $part:ident) => {
        match $kernel {
            Kernel::Fused { parts } => parts.$iter().for_each(|part| part.$part($f)),
            Kernel::Fill { target, .. } => $f(target, Write),
            Kernel::Copy {
                source,
                target: to,
                accumulate,
            } => {
                $f(source, Read);
                $f(to, target(*accumulate));
            }
            Kernel::Import { source, target, .. } => {
                $f(source, Read);
                $f(target, Write);
            }
            Kernel::PackWeights { w, packed, .. } => {
                $f(w, Read);
                $f(packed, Write);
            }
            Kernel::EmbeddingForward { x, w, y } => {
                $f(x, Read);
                $f(w, Read);
                $f(y, Write);
            }
            Kernel::LayerNormStatistics { x, sums } => {
                $f(x, Read);
                $f(sums, Write);
            }
            Kernel::LayerNormBackwardStatistics {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                ..
            } => {
                for view in [x, sums, gamma, dy] {
                    $f(view, Read);
                }
                $f(gradient_sums, Write);
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
                for view in [x, sums, dy] {
                    $f(view, Read);
                }
                $f(dgamma, target(*accumulate));
                $f(dbeta, target(*accumulate));
            }
            Kernel::AttentionForward { q, k, v, y, .. } => {
                for view in [q, k, v] {
                    $f(view, Read);
                }
                $f(y, Write);
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
                for view in [q, k, v, dy] {
                    $f(view, Read);
                }
                for (view, accumulate) in [dq, dk, dv].into_iter().zip(accumulate) {
                    view.$iter().for_each(|view| $f(view, target(*accumulate)));
                }
            }
            Kernel::LinearForward { x, w, bias, y } => {
                $f(x, Read);
                $f(w, Read);
                bias.$iter().for_each(|bias| $f(bias, Read));
                $f(y, Write);
            }
            Kernel::ConvolutionForward {
                x,
                w,
                bias,
                y,
                accumulate,
                ..
            }
            | Kernel::ConvolutionBackwardData {
                dy: x,
                w,
                bias,
                dx: y,
                accumulate,
                ..
            } => {
                $f(x, Read);
                $f(w, Read);
                bias.$iter().for_each(|bias| $f(bias, Read));
                $f(y, target(*accumulate));
            }
            Kernel::LinearBackwardData {
                dy,
                w,
                dx,
                accumulate,
            } => {
                $f(dy, Read);
                $f(w, Read);
                $f(dx, target(*accumulate));
            }
            Kernel::ConvolutionBackwardWeight {
                x,
                dy,
                dw,
                accumulate,
                ..
            }
            | Kernel::LinearBackwardWeight {
                x,
                dy,
                dw,
                accumulate,
            }
            | Kernel::EmbeddingBackward {
                x,
                dy,
                dw,
                accumulate,
            } => {
                $f(x, Read);
                $f(dy, Read);
                $f(dw, target(*accumulate));
            }
            Kernel::BiasBackward { dy, db, accumulate } => {
                $f(dy, Read);
                $f(db, target(*accumulate));
            }
            Kernel::PoolForward { x, y, .. }
            | Kernel::LeakyReluForward { x, y, .. }
            | Kernel::GeluForward { x, y }
            | Kernel::Positions { x, y, .. } => {
                $f(x, Read);
                $f(y, Write);
            }
            Kernel::PoolBackward {
                x,
                dy,
                dx,
                accumulate,
                ..
            } => {
                x.$iter().for_each(|x| $f(x, Read));
                $f(dy, Read);
                $f(dx, target(*accumulate));
            }
            Kernel::BatchNormStatistics {
                x,
                sums,
                accumulate,
            } => {
                $f(x, Read);
                $f(sums, target(*accumulate));
            }
            Kernel::BatchNormForward {
                x,
                sums,
                gamma,
                beta,
                y,
                ..
            }
            | Kernel::LayerNormForward {
                x,
                sums,
                gamma,
                beta,
                y,
                ..
            } => {
                for view in [x, sums, gamma, beta] {
                    $f(view, Read);
                }
                $f(y, Write);
            }
            Kernel::BatchNormRunning {
                sums,
                mean,
                variance,
                ..
            } => {
                $f(sums, Read);
                $f(mean, Update);
                $f(variance, Update);
            }
            Kernel::BatchNormInference {
                x,
                mean,
                variance,
                gamma,
                beta,
                y,
                ..
            } => {
                for view in [x, mean, variance, gamma, beta] {
                    $f(view, Read);
                }
                $f(y, Write);
            }
            Kernel::BatchNormBackwardStatistics {
                x,
                sums,
                dy,
                gradient_sums,
                accumulate,
                ..
            } => {
                for view in [x, sums, dy] {
                    $f(view, Read);
                }
                $f(gradient_sums, target(*accumulate));
            }
            Kernel::BatchNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                accumulate,
                ..
            }
            | Kernel::LayerNormBackwardData {
                x,
                sums,
                gamma,
                dy,
                gradient_sums,
                dx,
                accumulate,
                ..
            } => {
                for view in [x, sums, gamma, dy, gradient_sums] {
                    $f(view, Read);
                }
                $f(dx, target(*accumulate));
            }
            Kernel::BatchNormBackwardParameters {
                gradient_sums,
                dgamma,
                dbeta,
                accumulate,
            } => {
                $f(gradient_sums, Read);
                $f(dgamma, target(*accumulate));
                $f(dbeta, target(*accumulate));
            }
            Kernel::LeakyReluBackward {
                y,
                dy,
                dx,
                accumulate,
                ..
            }
            | Kernel::GeluBackward {
                x: y,
                dy,
                dx,
                accumulate,
            } => {
                $f(y, Read);
                $f(dy, Read);
                $f(dx, target(*accumulate));
            }
            Kernel::Dropout {
                x, y, accumulate, ..
            } => {
                $f(x, Read);
                $f(y, target(*accumulate));
            }
            Kernel::Add { a, b, y } => {
                $f(a, Read);
                $f(b, Read);
                $f(y, Write);
            }
            Kernel::MeanSquaredError {
                x,
                target,
                dx,
                loss,
                ..
            }
            | Kernel::SoftmaxCrossEntropy {
                x,
                target,
                dx,
                loss,
                ..
            } => {
                $f(x, Read);
                $f(target, Read);
                dx.$iter().for_each(|dx| $f(dx, Write));
                $f(loss, Write);
            }
            Kernel::OutputErrors { x, target, errors } => {
                $f(x, Read);
                $f(target, Read);
                $f(errors, Write);
            }
            Kernel::ClassCounts { x, target, counts } => {
                $f(x, Read);
                $f(target, Read);
                $f(counts, Write);
            }
            Kernel::SumOfSquares { sources, total } => {
                sources.$iter().for_each(|view| $f(view, Read));
                $f(total, Write);
            }
            Kernel::Update {
                parameter,
                gradient,
                moments,
                clip,
                ..
            } => {
                $f(gradient, Read);
                $f(parameter, Update);
                moments.$iter().for_each(|view| $f(view, Update));
                clip.$iter().for_each(|(total, _)| $f(total, Read));
            }
        }
    };
}

impl Kernel {
    /// The kernels that it stands for, in their order: itself, or those that are fused.
    pub fn parts(&self) -> &[Kernel] {
        if let Kernel::Fused { parts } = self {
            parts
        } else {
            std::slice::from_ref(self)
        }
    }

    /// Every view of every part, and how that part touches it.
    pub fn each_operand(&self, f: &mut dyn FnMut(&View, Access)) {
        operands!(self, f, iter, each_operand);
    }

    /// The same, to be changed.
    pub fn each_operand_mut(&mut self, f: &mut dyn FnMut(&mut View, Access)) {
        operands!(self, f, iter_mut, each_operand_mut);
    }

    /// Every view that passes between the kernel and memory, and how. A view that is read and written
    /// in place comes twice. What one part of a fused kernel leaves to a later one does not come
    /// again.
    pub fn each_access(&self, f: &mut dyn FnMut(&View, Access)) {
        let Kernel::Fused { parts } = self else {
            return self.each_operand(f);
        };
        // By buffer, so that the time grows with the number of parts only.
        let mut earlier: HashMap<BufferId, Vec<(View, Access)>> = HashMap::new();
        for part in parts {
            part.each_operand(&mut |view, access| {
                let mut before = earlier.get(&view.buffer).into_iter().flatten();
                let leaves = |(other, by): &(View, Access)| {
                    (by.writes() || access == Read) && other.region().holds(&view.region())
                };
                if !before.any(leaves) {
                    f(view, access);
                }
            });
            part.each_operand(&mut |view, access| {
                earlier
                    .entry(view.buffer)
                    .or_default()
                    .push((*view, access));
            });
        }
    }

    /// The list of [`Self::each_access`].
    pub fn accesses(&self) -> Vec<(View, Access)> {
        let mut all = Vec::new();
        self.each_access(&mut |view, access| all.push((*view, access)));
        all
    }

    /// Whether each element of the target depends on the same element of each operand of its extents, and
    /// an operand may be the target.
    pub fn is_elementwise(&self) -> bool {
        match self {
            Kernel::Fused { parts } => parts.iter().all(Kernel::is_elementwise),
            Kernel::LeakyReluForward { .. }
            | Kernel::LeakyReluBackward { .. }
            | Kernel::Dropout { .. }
            | Kernel::Add { .. }
            | Kernel::BatchNormForward { .. }
            | Kernel::BatchNormInference { .. }
            | Kernel::BatchNormBackwardData { .. }
            | Kernel::MeanSquaredError { .. } => true,
            Kernel::Fill { .. }
            | Kernel::Copy { .. }
            | Kernel::Import { .. }
            | Kernel::PackWeights { .. }
            | Kernel::ConvolutionForward { .. }
            | Kernel::ConvolutionBackwardData { .. }
            | Kernel::ConvolutionBackwardWeight { .. }
            | Kernel::BiasBackward { .. }
            | Kernel::PoolForward { .. }
            | Kernel::PoolBackward { .. }
            | Kernel::BatchNormStatistics { .. }
            | Kernel::BatchNormRunning { .. }
            | Kernel::BatchNormBackwardStatistics { .. }
            | Kernel::BatchNormBackwardParameters { .. }
            | Kernel::LinearForward { .. }
            | Kernel::LinearBackwardData { .. }
            | Kernel::LinearBackwardWeight { .. }
            | Kernel::SoftmaxCrossEntropy { .. }
            | Kernel::OutputErrors { .. }
            | Kernel::ClassCounts { .. }
            | Kernel::SumOfSquares { .. }
            | Kernel::EmbeddingForward { .. }
            | Kernel::EmbeddingBackward { .. }
            | Kernel::Positions { .. }
            | Kernel::LayerNormStatistics { .. }
            | Kernel::LayerNormForward { .. }
            | Kernel::LayerNormBackwardStatistics { .. }
            | Kernel::LayerNormBackwardData { .. }
            | Kernel::LayerNormBackwardParameters { .. }
            | Kernel::GeluForward { .. }
            | Kernel::GeluBackward { .. }
            | Kernel::AttentionForward { .. }
            | Kernel::AttentionBackward { .. }
            | Kernel::Update { .. } => false,
        }
    }
}
