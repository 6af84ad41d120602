//! How many ranks hold the same data, or compute the same.

use partita_program::{Body, Buffer, Program, Role, TensorRegion, View};
use partita_space::{AxisSet, Coord, Region};
use std::collections::HashMap;

/// Replication of data and computation over the ranks of a program.
pub(super) struct Replication<'p> {
    program: &'p Program,
    /// Number of buffers that hold all of a tensor, by the name of the tensor.
    whole: HashMap<&'p str, usize>,
}

impl<'p> Replication<'p> {
    pub fn new(program: &'p Program) -> Self {
        let mut whole = HashMap::new();
        for (body, ranks) in program.bodies.iter().zip(program.class_sizes()) {
            for buffer in body.buffers.iter().filter(|buffer| is_whole(buffer)) {
                *whole.entry(stem(&buffer.name)).or_insert(0) += ranks;
            }
        }
        Self { program, whole }
    }

    /// Number of replicas of what a buffer owns of its tensor; 1 if unknown.
    pub fn of(&self, buffer: &Buffer) -> usize {
        match buffer.tensor {
            Some(tensor) => self.along(&tensor, tensor.distribution.split_axes()),
            None if is_whole(buffer) => self.whole[stem(&buffer.name)],
            None => 1,
        }
    }

    /// Number of ranks that compute the same from the same operands: those along the axes that split none of
    /// them. Operands that hold no tensor are ignored if others do.
    pub fn of_computation(&self, body: &Body, views: &[View]) -> usize {
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

    /// Number of ranks in the mesh of a tensor with the same coordinates along `axes`.
    fn along(&self, tensor: &TensorRegion, axes: AxisSet) -> usize {
        let mesh = tensor.distribution.mesh(&self.program.mesh);
        mesh.ranks() / mesh.group_size(axes)
    }

    /// Elements of a view that the rank owns, and those of its halo inside the tensor.
    pub fn owned_and_halo(
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
        Role::Parameter
        | Role::State
        | Role::Constant
        | Role::Optimizer
        | Role::Average
        | Role::Gradient
        | Role::Gathered => true,
        Role::Staging
        | Role::Activation
        | Role::ActivationGradient
        | Role::PackedWeights
        | Role::Statistics
        | Role::Workspace => false,
    };
    is_state && buffer.tensor.is_none()
}

/// The name of a tensor without the number of its replica on a rank.
fn stem(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}
