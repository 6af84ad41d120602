//! Losses, their gradients, and the metrics beside them.
//!
//! Losses of classes that divide by a sum over targets, and Dice, are functions of sums over positions. These are
//! summed over ranks in the forward pass, before the kernel that computes loss and gradient. Each position then
//! adds its share of the loss.

use crate::emit::Emit;
use crate::network::{LayerId, positions};
use crate::totals::counts;
use partita_graph::{ClassLoss, Loss, TargetKind};
use partita_program::{
    ClassTerms, DICE_SUMS, Dtype, ENTROPY, ElementFunction, Item, Kernel, Phase, ProgramKind, Role,
    View,
};
use partita_space::AxisSet;

impl Emit<'_> {
    /// Loss of the owned part, and its gradient.
    pub(crate) fn loss(&mut self, id: LayerId, layer: &str, loss: &Loss, weight: f64) {
        let input = self.layer(id).inputs[0];
        let x = self.owned_value(input);
        let target = self.staged(self.micro, Item::Target);
        let [totals, sums] = match loss {
            Loss::Classes(loss) => self.class_sums(id, layer, loss),
            Loss::MeanSquaredError | Loss::SoftmaxCrossEntropy { .. } | Loss::Elements(_) => {
                [None; 2]
            }
        };
        let value = self.builder.sums(layer, 1, 1);
        if let Loss::Classes(loss) = loss {
            self.entropy(input, layer, loss, totals);
        }
        if x.is_empty() {
            self.builder.fill(layer, self.pass, value, 0.0);
            return self.add_up("loss", layer, value);
        }
        let training = self.request.kind == ProgramKind::Train;
        let dx = (training && self.storages.of(input).has_gradient).then(|| {
            // The loss is the first contribution, so it overwrites.
            self.contribute(input, &self.owned(input)).0
        });
        let shape = self.distribution(input).shape;
        let positions = shape[..4].iter().product::<usize>() as u64;
        let elements = positions * shape[4] as u64;
        let kernel = match loss {
            Loss::MeanSquaredError => Kernel::MeanSquaredError {
                x,
                target,
                dx,
                loss: value,
                count: elements,
                weight,
            },
            Loss::SoftmaxCrossEntropy { smoothing } => Kernel::SoftmaxCrossEntropy {
                x,
                target,
                dx,
                loss: value,
                count: positions,
                weight,
                smoothing: *smoothing,
            },
            Loss::Elements(loss) => Kernel::ElementLoss {
                function: loss.function,
                x,
                target,
                dx,
                loss: value,
                count: elements,
                weight,
                weights: loss.weights.clone(),
            },
            Loss::Classes(loss) => Kernel::ClassLoss {
                x,
                target,
                totals,
                sums,
                dx,
                loss: value,
                weight,
                terms: self.terms(input, loss),
            },
        };
        self.builder.kernel(layer, self.pass, kernel);
        self.add_up("loss", layer, value);
    }

    fn terms(&self, input: LayerId, loss: &ClassLoss) -> ClassTerms {
        let distribution = self.distribution(input);
        let shape = distribution.shape;
        let [all, of_sample] = [0, 1].map(|first| shape[first..4].iter().product::<usize>() as u64);
        ClassTerms {
            all,
            summed: if loss.batch {
                Self::count(distribution)
            } else {
                of_sample
            },
            ..class_terms(loss)
        }
    }

    /// In an evaluation of a loss that has Dice beside it, the cross-entropy alone.
    fn entropy(&mut self, input: LayerId, layer: &str, loss: &ClassLoss, totals: Option<View>) {
        if self.request.kind != ProgramKind::Evaluate || !has_entropy_apart(loss) {
            return;
        }
        let (x, value) = (self.owned_value(input), self.builder.sums(ENTROPY, 1, 1));
        if x.is_empty() {
            self.builder.fill(layer, self.pass, value, 0.0);
        } else {
            let kernel = Kernel::ClassLoss {
                x,
                target: self.staged(self.micro, Item::Target),
                totals,
                sums: None,
                dx: None,
                loss: value,
                weight: 1.0,
                terms: ClassTerms {
                    dice: 0.0,
                    ..self.terms(input, loss)
                },
            };
            self.builder.kernel(layer, self.pass, kernel);
        }
        self.add_up(ENTROPY, layer, value);
    }

    /// The sums over positions that the loss is a function of, over all ranks: of the positions of each class,
    /// and of Dice.
    fn class_sums(&mut self, id: LayerId, layer: &str, loss: &ClassLoss) -> [Option<View>; 2] {
        let input = self.layer(id).inputs[0];
        let (x, distribution) = (self.owned_value(input), *self.distribution(input));
        let (target, ignore) = (self.staged(self.micro, Item::Target), loss.ignore);
        let channels = distribution.shape[4];
        let all = positions(&distribution);
        let counted = self.totals.get(&(id, self.builder.submesh)).copied();
        let totals = loss.counts_targets().then(|| {
            if let Some(totals) = counted {
                return totals;
            }
            let totals = self.builder.sums(&format!("{layer}.totals"), 1, channels);
            self.own_sum(layer, (x, totals), counts([x, target, totals], ignore));
            self.sum_over(layer, all, totals);
            totals
        });
        let sums = (loss.dice != 0.0).then(|| {
            let own = self.owned(input).0[0].len();
            let samples = if loss.batch { 1 } else { own };
            let name = format!("{layer}.sums");
            let id = self.builder.buffer(
                &name,
                Role::Statistics,
                Dtype::F64,
                [samples, 1, 1, 3, channels],
            );
            let sums = self.builder.whole(id);
            let kernel = Kernel::DiceSums {
                x,
                target,
                sums,
                batch: loss.batch,
                ignore,
            };
            let of_samples = distribution.axes[0].set();
            let axes = if loss.batch {
                all
            } else {
                all.minus(of_samples)
            };
            self.own_sum(layer, (x, sums), kernel);
            if loss.batch && self.request.kind == ProgramKind::Evaluate {
                let own = self.builder.sums(DICE_SUMS, 3, channels);
                self.copy(layer, sums, own);
                self.add_up(DICE_SUMS, layer, own);
            }
            self.sum_over(layer, axes, sums);
            sums
        });
        [totals, sums]
    }

    /// Sums of the owned part of `x`, by a kernel.
    fn own_sum(&mut self, layer: &str, (x, sums): (View, View), kernel: Kernel) {
        if x.is_empty() {
            self.builder.fill(layer, self.pass, sums, 0.0);
        } else {
            self.builder.kernel(layer, self.pass, kernel);
        }
    }

    /// Sums over the ranks along the axes.
    fn sum_over(&mut self, layer: &str, axes: AxisSet, sums: View) {
        if sums.is_empty() {
            // So that all ranks count alike.
            self.builder.next_sequence();
        } else {
            self.allreduce(layer, self.pass, axes, sums);
        }
    }

    /// Reports the loss summed over ranks, and in an evaluation the metrics.
    pub(crate) fn report_loss(&mut self, id: LayerId, layer: &str, loss: &Loss) {
        let input = self.layer(id).inputs[0];
        let axes = positions(self.distribution(input));
        self.report("loss", layer, axes);
        if self.request.kind != ProgramKind::Evaluate {
            return;
        }
        let (name, rows) = metrics(loss);
        let sums = self
            .builder
            .sums(name, rows, self.distribution(input).shape[4]);
        let x = self.owned_value(input);
        let target = self.staged(self.micro, Item::Target);
        if x.is_empty() {
            self.builder.fill(layer, Phase::Report, sums, 0.0);
        } else {
            let kernel = match loss.target() {
                TargetKind::Values => Kernel::OutputErrors {
                    x,
                    target,
                    errors: sums,
                    logistic: is_logistic(loss),
                },
                TargetKind::Classes => Kernel::ClassCounts {
                    x,
                    target,
                    counts: sums,
                    ignore: loss.ignored(),
                },
            };
            self.builder.kernel(layer, Phase::Report, kernel);
        }
        self.add_up(name, layer, sums);
        for (name, ..) in self.outputs_of(0).split_off(1) {
            self.report(name, layer, axes);
        }
    }

    /// Outputs of a step: name, rows and columns.
    pub(crate) fn outputs_of(&self, channels: usize) -> Vec<(&'static str, usize, usize)> {
        let last = &self.network.layers[self.network.layers.len() - 1];
        let mut outputs = vec![("loss", 1, 1)];
        if let (ProgramKind::Evaluate, Some(loss)) = (self.request.kind, last.loss()) {
            let (name, rows) = metrics(loss);
            outputs.push((name, rows, channels));
            if let Loss::Classes(loss) = loss {
                outputs.extend(has_entropy_apart(loss).then_some((ENTROPY, 1, 1)));
                outputs.extend(loss.sums_samples().then_some((DICE_SUMS, 3, channels)));
            }
        }
        outputs
    }
}

/// Constants of a loss of classes, per position and sum.
pub fn class_terms(loss: &ClassLoss) -> ClassTerms {
    ClassTerms {
        cross_entropy: loss.cross_entropy,
        dice: loss.dice,
        smoothing: loss.smoothing,
        smooth: loss.smooth,
        background: loss.background,
        weights: loss.weights.values().to_vec(),
        dice_weights: loss.dice_weights.as_ref().map(|it| it.values().to_vec()),
        ignore: loss.ignore,
        all: 1,
        summed: 1,
    }
}

/// Whether an evaluation tells the cross-entropy beside the loss, as both parts are divided by sums of their own.
fn has_entropy_apart(loss: &ClassLoss) -> bool {
    let has_both = loss.cross_entropy != 0.0 && loss.dice != 0.0;
    has_both && (loss.counts_targets() || loss.sums_samples())
}

/// Name and rows of the metrics beside a loss.
fn metrics(loss: &Loss) -> (&'static str, usize) {
    match loss.target() {
        TargetKind::Values => ("errors", 2),
        TargetKind::Classes => ("counts", 3),
    }
}

fn is_logistic(loss: &Loss) -> bool {
    match loss {
        Loss::Elements(loss) => loss.function == ElementFunction::LogisticEntropy,
        Loss::MeanSquaredError | Loss::SoftmaxCrossEntropy { .. } | Loss::Classes(_) => false,
    }
}
