//! Gradients of the values of layers.

use crate::body::{Builder, TensorBuffer};
use crate::exchange::scatter_halo;
use crate::network::{LayerId, Network};
use crate::slabs::{Part, Slab};
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
    /// The slab of a block in chunks that is computed now.
    slab: Option<Slab>,
}

impl<'a> ActivationGradients<'a> {
    pub fn new(plan: &'a StepPlan<'a>, micro: usize) -> Self {
        let (network, storages) = &plan.networks[micro];
        Self {
            plan,
            network,
            storages,
            of: vec![None; storages.all.len()],
            slab: None,
        }
    }

    /// Begins with a slab.
    pub fn enter_slab(&mut self, slab: Slab) {
        self.slab = Some(slab);
    }

    /// What belongs to the slab of a whole copy.
    pub fn of_exit(&self, id: LayerId) -> Region {
        let slab = self.slab.as_ref();
        slab.map(|slab| slab.of_exit(id)).unwrap_or_default()
    }

    /// Ends with the slab, and lets go of the gradients of these tensors.
    pub fn leave_slab(&mut self, inner: &[LayerId]) {
        self.slab = None;
        for id in inner {
            self.of[self.storages.of[id.0]] = None;
        }
    }

    /// What the slab has of a storage, if that is of its block.
    pub fn slab_part(&self, storage: usize) -> Option<Part> {
        let members = &self.storages.all[storage].members;
        let slab = self.slab.as_ref()?;
        // Layers in place read and write the same positions.
        let (first, last) = (slab.part(members[0])?, slab.part(*members.last()?)?);
        Some(Part {
            around: first.around,
            ..*last
        })
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
            let inside = self.partial_inside(builder, id);
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

    /// What can receive contributions: all but zero padding.
    fn partial_inside(&self, builder: &Builder<'_>, id: LayerId) -> Region {
        if let Some(part) = self.slab_part(self.storages.of[id.0]) {
            return part.computed;
        }
        let geometry = &self.storages.of(id).partial;
        let all = geometry.held(&builder.coord);
        let mut reach = all;
        for dim in 0..5 {
            let line = geometry.lines_at(&builder.coord)[dim];
            let pieces = line.pieces.iter();
            reach.0[dim] = pieces.fold(line.owned, |hull, piece| hull.hull(&piece.at));
        }
        all.intersect(&reach)
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
        let part = self.slab_part(index);
        let (partial, around) = match part {
            Some(part) => (part.computed, part.around),
            None => (storage.partial.held(&coord), storage.around.held(&coord)),
        };
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
        builder.set_redundant(held, storage.inner || part.is_some());
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
        let part = self.slab_part(self.storages.of[id.0]);
        if !state.written {
            let inside = self.partial_inside(builder, id);
            let all = part.map_or_else(|| inside.hull(&owned), |_| inside);
            builder.fill(&layer, Phase::Backward, state.held.view(&all), 0.0);
            self.mark_written(id);
        }
        if !storage.inner && part.is_none() {
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
