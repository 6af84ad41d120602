//! Gradients of the values of layers.

use crate::body::{Builder, TensorBuffer};
use crate::exchange::scatter_halo;
use crate::network::{LayerId, Network};
use crate::step_plan::StepPlan;
use crate::storage::Storages;
use partita_program::{Phase, Role, View};
use partita_space::Region;

/// Buffer of a gradient while contributions are added.
#[derive(Clone, Copy)]
pub(crate) struct GradientBuffer {
    pub held: TensorBuffer,
    written: bool,
}

/// The gradients of the values of a micro-batch, by storage.
pub(crate) struct ActivationGradients<'a> {
    plan: &'a StepPlan<'a>,
    network: &'a Network,
    storages: &'a Storages,
    of: Vec<Option<GradientBuffer>>,
}

impl<'a> ActivationGradients<'a> {
    pub fn new(plan: &'a StepPlan<'a>, micro: usize) -> Self {
        let (network, storages) = &plan.networks[micro];
        Self {
            plan,
            network,
            storages,
            of: vec![None; storages.all.len()],
        }
    }

    /// The buffer of a gradient that has one.
    pub fn held(&self, id: LayerId) -> Option<TensorBuffer> {
        let index = self.storages.of[id.0];
        self.of[index].map(|state| state.held)
    }

    /// The view of a region of a gradient, and whether to accumulate. The first contribution overwrites; where
    /// it does not cover all that later ones or other ranks add to, the gradient is set to zero before.
    pub(crate) fn contribute(
        &mut self,
        builder: &mut Builder<'_>,
        id: LayerId,
        region: &Region,
    ) -> (View, bool) {
        let state = self.of_layer(builder, id);
        let held = state.held;
        let mut accumulate = true;
        if !state.written {
            let storage = self.storages.of(id);
            let all = storage.partial.held(&builder.coord);
            let inside = all.intersect(&self.partial_reach(builder, id, &all));
            if region.holds(&inside) {
                accumulate = false;
            } else {
                let layer = self.network.layer(id).name.clone();
                builder.fill(&layer, Phase::Backward, held.view(&inside), 0.0);
            }
            self.mark_written(id);
        }
        (held.view(region), accumulate)
    }

    /// The part of `all` that can receive contributions: all but zero padding.
    fn partial_reach(&self, builder: &Builder<'_>, id: LayerId, all: &Region) -> Region {
        let geometry = &self.storages.of(id).partial;
        let mut reach = *all;
        for dim in 0..5 {
            let line = geometry.lines_at(&builder.coord)[dim];
            let pieces = line.pieces.iter();
            reach.0[dim] = pieces.fold(line.owned, |hull, piece| hull.hull(&piece.at));
        }
        reach
    }

    fn mark_written(&mut self, id: LayerId) {
        let index = self.storages.of[id.0];
        if let Some(state) = &mut self.of[index] {
            state.written = true;
        }
    }

    /// Allocates the gradient of a storage.
    pub(crate) fn of_layer(&mut self, builder: &mut Builder<'_>, id: LayerId) -> GradientBuffer {
        let index = self.storages.of[id.0];
        if let Some(state) = self.of[index] {
            return state;
        }
        let storage = &self.storages.all[index];
        let coord = builder.coord;
        // The hull by dims, since an empty owned part still has a position.
        let (partial, around) = (storage.partial.held(&coord), storage.around.held(&coord));
        let mut region = partial;
        for dim in 0..5 {
            region.0[dim].start = partial.0[dim].start.min(around.0[dim].start);
            region.0[dim].end = partial.0[dim].end.max(around.0[dim].end);
        }
        let name = format!("d.{}", self.network.layer(storage.members[0]).name);
        let tensor = self.plan.tensor(storage, true);
        let distribution = storage.value.distribution;
        let held = builder.tensor_buffer(
            &name,
            Role::ActivationGradient,
            tensor,
            distribution,
            region,
        );
        builder.set_redundant(held, storage.inner);
        let state = GradientBuffer {
            held,
            written: false,
        };
        self.of[index] = Some(state);
        state
    }

    /// Completes a gradient after all contributions of this rank: the reverse halo exchange. Redundant copies
    /// need none.
    pub(crate) fn complete(&mut self, builder: &mut Builder<'_>, id: LayerId) {
        let state = self.of_layer(builder, id);
        let storage = self.storages.of(id);
        let layer = self.network.layer(id).name.clone();
        let owned = builder.owned(&self.network.layer(id).distribution);
        if !state.written {
            let all = storage.partial.held(&builder.coord);
            let inside = all.intersect(&self.partial_reach(builder, id, &all));
            builder.fill(
                &layer,
                Phase::Backward,
                state.held.view(&inside.hull(&owned)),
                0.0,
            );
            self.mark_written(id);
        }
        if !storage.inner {
            scatter_halo(
                builder,
                &layer,
                Phase::Backward,
                &state.held,
                &storage.partial,
            );
        }
    }
}
