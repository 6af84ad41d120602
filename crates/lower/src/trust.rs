//! Norms of whole parameters, for the trust ratios of LARS and LAMB.
//!
//! Each rank sums squares over its shares. Sums of parameters that are split over the same axes are rows of one buffer,
//! which is reduced over the ranks of these axes.
//!
//! `UpdateNorms` sums squares for LARS, and for LAMB after it has replaced the gradient by the direction. Biases,
//! scales and shifts that are exempt from decay have the rule without it (`Optimizer::without_decay`).

use crate::body::TensorBuffer;
use crate::emit::Emit;
use partita_graph::ParameterId;
use partita_program::{Kernel, Optimizer, Phase, View};
use partita_space::{AxisSet, Submesh};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the buffers of norms.
const NAME: &str = "trust_norms";

/// Bound of the norm of all gradients, with that norm.
type Clip = Option<(View, f64)>;

impl Emit<'_> {
    /// Norms of each parameter that the rank updates under a trust ratio.
    pub(crate) fn trust_norms(
        &mut self,
        gradients: &[(ParameterId, View)],
        shares: &BTreeMap<ParameterId, TensorBuffer>,
        clip: Clip,
    ) -> BTreeMap<ParameterId, View> {
        let ids = (0..self.graph.parameters.len()).map(ParameterId);
        let under = ids.filter(|&id| self.has_trust_ratio(id));
        let key = |id: ParameterId| {
            let whole = self.plan.holders[id.0][0];
            (whole.submesh, self.plan.share_of(id, whole).split_axes())
        };
        // The same on all ranks.
        let sets: BTreeSet<(Option<Submesh>, AxisSet)> = under.map(key).collect();
        let own = |set| -> Vec<(ParameterId, View)> {
            let own = gradients.iter().copied();
            own.filter(|&(id, _)| self.has_trust_ratio(id) && key(id) == set)
                .collect()
        };
        let sets: Vec<_> = sets.into_iter().map(|set| (set, own(set))).collect();
        let mut norms = BTreeMap::new();
        for (at, ((submesh, axes), own)) in sets.into_iter().enumerate() {
            self.builder.reserve_numbers();
            if !self.builder.enter(submesh) {
                continue;
            }
            // A rank may be a member of several submeshes, which need different names.
            let all = self
                .builder
                .sums(&format!("{NAME}.{at}.{axes}"), own.len(), 2);
            for (row, (id, gradient)) in own.into_iter().enumerate() {
                let mut view = all;
                (view.start[3], view.extent[3]) = (all.start[3] + row, 1);
                norms.insert(id, view);
                let share = shares[&id];
                let kernel = Kernel::UpdateNorms {
                    rule: self.request.optimizer,
                    parameter: share.view(&share.region),
                    gradient,
                    moments: match self.request.optimizer {
                        Optimizer::Lamb { .. } => self.moments[id.0].clone(),
                        Optimizer::Sgd { .. }
                        | Optimizer::Nesterov { .. }
                        | Optimizer::Adam { .. }
                        | Optimizer::AdamW { .. }
                        | Optimizer::Lars { .. } => Vec::new(),
                    },
                    clip,
                    norms: view,
                };
                let name = self.graph.parameter(id).name.clone();
                self.builder.kernel(&name, Phase::Update, kernel);
            }
            self.allreduce(NAME, Phase::Update, axes, all);
        }
        norms
    }

    /// The update of a parameter; its norms are given if it has a trust ratio.
    pub(crate) fn update_of(
        &self,
        id: ParameterId,
        (parameter, gradient): (View, View),
        clip: Clip,
        norms: &BTreeMap<ParameterId, View>,
    ) -> Kernel {
        let rule = self.request.rule(self.graph.parameter(id).role);
        let (moments, clip) = match rule {
            // Its direction has been computed with the norms.
            Optimizer::Lamb { .. } => (Vec::new(), None),
            Optimizer::Sgd { .. }
            | Optimizer::Nesterov { .. }
            | Optimizer::Adam { .. }
            | Optimizer::AdamW { .. }
            | Optimizer::Lars { .. } => (self.moments[id.0].clone(), clip),
        };
        Kernel::Update {
            rule,
            parameter,
            gradient,
            moments,
            norms: norms.get(&id).copied(),
            clip,
        }
    }

    fn has_trust_ratio(&self, id: ParameterId) -> bool {
        let parameter = self.graph.parameter(id);
        let is_exempt = !self.request.decay_norms && !parameter.role.is_weight();
        parameter.is_trained() && !is_exempt && self.request.optimizer.has_trust_ratio()
    }
}
