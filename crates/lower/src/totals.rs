//! Counts of targets over a whole mini-batch.
//!
//! A cross-entropy with weights or an ignored class divides by a sum over all targets of an update. So where there are
//! several micro-batches, each has a staging buffer for its targets, and all are counted at the start of the step.
//!
//! A batch norm, and a Dice over the batch, cannot be divided by counts that are known ahead: `partita` says so,
//! and the search leaves such strategies out.

use crate::emit::{Emit, staged_distribution};
use crate::network::{LayerId, positions};
use partita_graph::{ClassLoss, Loss};
use partita_program::{Distribution, Item, Kernel, Role, View, When};
use partita_space::Submesh;

/// Tensor number of the targets, which are no tensor of a layer.
const TARGETS: u32 = u32::MAX;

impl Emit<'_> {
    /// Whether the targets of all micro-batches are staged at once. The same for all programs of a run.
    pub(crate) fn stages_all_targets(&self) -> bool {
        let mut losses = self.graph.nodes.iter().filter_map(|node| node.op.loss());
        self.request.kind.reads_targets()
            && self.plan.networks.len() > 1
            && losses.any(|loss| counted(loss).is_some())
    }

    /// Staging buffers for the targets of each micro-batch, on each replica: an evaluation takes all micro-batches on the
    /// first, whichever replica trains on them, and has the same buffers.
    pub(crate) fn stage_all_targets(&mut self) {
        for micro in 0..self.plan.networks.len() {
            let mut of_micro = [None; 2];
            for (replica, staged) in of_micro.iter_mut().enumerate() {
                if replica >= self.request.strategy.schedule.replicas() {
                    continue;
                }
                let distribution = self.target_on(micro, replica);
                if self.builder.is_in(distribution.submesh) {
                    let region = self.builder.owned(&distribution);
                    let name = format!("target.{micro}");
                    let of = (Role::Staging, TARGETS);
                    let held =
                        (self.builder).tensor_buffer(&name, of.0, of.1, distribution, region);
                    *staged = Some(self.builder.whole(held.id));
                }
            }
            self.targets.push(of_micro);
        }
    }

    /// Distribution of the targets of a micro-batch on the ranks of a replica.
    fn target_on(&self, micro: usize, replica: usize) -> Distribution {
        let network = &self.plan.networks[micro].0;
        let rank_set = network.layers[network.layers.len() - 1].rank_set;
        Distribution {
            submesh: self.plan.placement.rank_sets[rank_set].submeshes[replica],
            ..staged_distribution(network, Item::Target)
        }
    }

    /// Loads the targets of all micro-batches on the replicas that take them; before the first step of any program also
    /// on the first.
    pub(crate) fn load_all_targets(&mut self, when: When) {
        for micro in 0..self.targets.len() {
            let own = self.plan.replica_of[micro];
            let first = if when == When::Now { 0 } else { own };
            for replica in first..=own {
                let distribution = self.target_on(micro, replica);
                if let Some(target) = self.targets[micro][replica] {
                    self.load_to(Item::Target, when, distribution, target);
                }
            }
        }
    }

    /// Counts the targets of all micro-batches, for each loss that divides by them.
    pub(crate) fn count_targets(&mut self) {
        if self.targets.is_empty() {
            return;
        }
        let network = &self.plan.networks[0].0;
        for (index, layer) in network.layers.iter().enumerate() {
            if let Some(loss) = layer.loss().and_then(counted) {
                self.count_targets_of(LayerId(index), loss);
            }
        }
    }

    fn count_targets_of(&mut self, id: LayerId, loss: &ClassLoss) {
        let plan = self.plan;
        let layer = plan.networks[0].0.layer(id);
        let input = plan.networks[0].0.layer(layer.inputs[0]);
        let [.., channels] = input.distribution.shape;
        let mut submeshes: Vec<Option<Submesh>> = Vec::new();
        for (network, _) in &plan.networks {
            let submesh = network.layer(id).distribution.submesh;
            if !submeshes.contains(&submesh) {
                submeshes.push(submesh);
            }
        }
        let mut totals = Vec::new();
        for &submesh in &submeshes {
            self.builder.reserve_numbers();
            let is_here = self.builder.enter(submesh);
            totals.push(is_here.then(|| {
                let totals = self.own_totals((id, &layer.name), submesh, loss, channels);
                let axes = positions(&input.distribution);
                self.allreduce(&layer.name, self.pass, axes, totals);
                totals
            }));
        }
        let on = |submesh| Distribution {
            submesh,
            ..Distribution::replicated([1, 1, 1, 1, channels])
        };
        if let ([first, second], [of_first, of_second]) = (&submeshes[..], &totals[..]) {
            let ([first, second], name) = ([on(*first), on(*second)], &layer.name);
            let moved = [
                self.moments_at(name, *of_second, (&second, &first)),
                self.moments_at(name, *of_first, (&first, &second)),
            ];
            for (target, source) in totals.iter().zip(moved) {
                if let (Some(target), Some(source)) = (target, source) {
                    self.add_totals(name, source, *target);
                }
            }
        }
        for (submesh, totals) in submeshes.into_iter().zip(totals) {
            self.totals
                .extend(totals.map(|totals| ((id, submesh), totals)));
        }
    }

    /// Counts of the targets of the rank, of the micro-batches that a submesh takes.
    fn own_totals(
        &mut self,
        (id, layer): (LayerId, &str),
        submesh: Option<Submesh>,
        loss: &ClassLoss,
        channels: usize,
    ) -> View {
        let plan = self.plan;
        let name = format!("{layer}.totals");
        let totals = self.builder.sums(&name, 1, channels);
        let mut counted = false;
        for (micro, (network, _)) in plan.networks.iter().enumerate() {
            if network.layer(id).distribution.submesh != submesh {
                continue;
            }
            let target = self.staged(micro, Item::Target);
            if target.is_empty() {
                continue;
            }
            let own = if counted {
                self.builder.sums(&name, 1, channels)
            } else {
                totals
            };
            let kernel = counts([target, target, own], loss.ignore);
            self.builder.kernel(layer, self.pass, kernel);
            if counted {
                self.add_totals(layer, own, totals);
            }
            counted = true;
        }
        if !counted {
            self.builder.fill(layer, self.pass, totals, 0.0);
        }
        totals
    }

    fn add_totals(&mut self, layer: &str, source: View, target: View) {
        let copy = Kernel::Copy {
            source,
            target,
            accumulate: true,
        };
        self.builder.kernel(layer, self.pass, copy);
    }
}

/// Counts the positions of each class of a target; `x` has the same positions.
pub(crate) fn counts([x, target, totals]: [View; 3], ignore: Option<i64>) -> Kernel {
    Kernel::ClassTotals {
        x,
        target,
        totals,
        ignore,
    }
}

/// A loss that divides by a sum over targets.
fn counted(loss: &Loss) -> Option<&ClassLoss> {
    match loss {
        Loss::Classes(loss) => loss.counts_targets().then_some(loss),
        Loss::MeanSquaredError | Loss::SoftmaxCrossEntropy { .. } | Loss::Elements(_) => None,
    }
}
