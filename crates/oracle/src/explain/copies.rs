//! How many ranks hold, or compute, the same.

use partita_program::{Body, Buffer, Program, Role, TensorRegion, View};
use partita_space::{AxisSet, Coord, Region};
use std::collections::HashMap;

/// Who holds the same.
pub(super) struct Copies<'p> {
    program: &'p Program,
    /// Ranks and buffers by the name of a tensor that each of them holds whole.
    whole: HashMap<&'p str, usize>,
}

impl<'p> Copies<'p> {
    pub fn new(program: &'p Program) -> Self {
        let mut whole = HashMap::new();
        for (body, ranks) in program.bodies.iter().zip(program.class_sizes()) {
            for buffer in body.buffers.iter().filter(|buffer| is_whole(buffer)) {
                *whole.entry(stem(&buffer.name)).or_insert(0) += ranks;
            }
        }
        Self { program, whole }
    }

    /// How often what a buffer owns of its tensor is held; 1 where nothing is known of others.
    pub fn of(&self, buffer: &Buffer) -> usize {
        match buffer.tensor {
            Some(tensor) => self.along(&tensor, tensor.distribution.split_axes()),
            None if is_whole(buffer) => self.whole[stem(&buffer.name)],
            None => 1,
        }
    }

    /// How many ranks compute the same from the same: those along the axes that split none of the
    /// operands. Operands that hold no tensor say nothing where others do.
    pub fn of_work(&self, body: &Body, views: &[View]) -> usize {
        let buffers = || views.iter().map(|view| body.buffer(view.buffer));
        let tensors: Vec<TensorRegion> = buffers().filter_map(|buffer| buffer.tensor).collect();
        if let Some(first) = tensors.first() {
            let sets = tensors
                .iter()
                .map(|tensor| tensor.distribution.split_axes());
            return self.along(first, sets.fold(AxisSet::NONE, AxisSet::union));
        }
        let whole = buffers().filter(|buffer| is_whole(buffer));
        whole.map(|buffer| self.of(buffer)).min().unwrap_or(1)
    }

    /// Ranks of the mesh of a tensor that differ along none of the axes.
    fn along(&self, tensor: &TensorRegion, axes: AxisSet) -> usize {
        let mesh = tensor.distribution.mesh(&self.program.mesh);
        mesh.ranks() / mesh.group_size(axes)
    }

    /// Elements of a view that the rank owns, and others of it that lie in the tensor.
    pub fn owned_and_framed(
        &self,
        tensor: &TensorRegion,
        view: &View,
        coord: &Coord,
    ) -> (usize, usize) {
        let mesh = &self.program.mesh;
        let owned = tensor.distribution.owned(mesh, coord);
        let held = tensor.region(view, mesh, coord);
        let own = held.intersect(&owned).volume();
        let inside = held
            .intersect(&Region::all(tensor.distribution.shape))
            .volume();
        (own, inside - own)
    }
}

/// Whether a buffer holds all of a tensor of the training state.
fn is_whole(buffer: &Buffer) -> bool {
    let is_state = match buffer.role {
        Role::Parameter | Role::State | Role::Optimizer | Role::Gradient | Role::Gathered => true,
        Role::Staging
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Statistics
        | Role::Workspace => false,
    };
    is_state && buffer.tensor.is_none()
}

/// Without the number that a second copy on a rank has.
fn stem(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}
