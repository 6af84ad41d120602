//! Builder of the body of one rank.

use crate::fuse::{compute, fuse};
use crate::passes::LoweringPass;
use crate::strategy::WorkspaceLimit;
use partita_program::{
    Body, Buffer, BufferId, Collective, CollectiveKind, Distribution, Dtype, Kernel, Menu,
    MenuError, Origin, Output, Phase, Role, Task, TaskId, TensorRegion, View, Work,
};
use partita_space::{AxisSet, Bytes, Coord, Mesh, Offset, Rank, Region, Submesh};
use std::collections::HashMap;

/// Message numbers reserved for the exchanges and collectives of a layer in a slot, or of a reduction of a
/// parameter; [`Builder::next_sequence`] asserts that no more are used.
pub(crate) const NUMBERS: u32 = 32;

/// A buffer that holds a region of a tensor, halo included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorBuffer {
    pub id: BufferId,
    /// Global region of the whole buffer.
    pub region: Region,
}

impl TensorBuffer {
    /// The view of a global region.
    pub fn view(&self, region: &Region) -> View {
        let dims = self.region.0.iter().zip(&region.0);
        let mut ends = dims.map(|(held, part)| held.start <= part.start && part.end <= held.end);
        // Nothing may lie anywhere.
        if self.region == Region::default() || region.is_empty() && !ends.all(|inside| inside) {
            assert!(region.is_empty(), "{region} is not held by b{}", self.id.0);
            return View {
                buffer: self.id,
                start: [0; 5],
                extent: [0; 5],
            };
        }
        assert!(
            self.region.holds(region),
            "{region} is not held by b{} of {}",
            self.id.0,
            self.region
        );
        View::of(
            self.id,
            &region.shift(self.region.0.map(|interval| -interval.start)),
        )
    }
}

pub(crate) struct Builder<'a> {
    /// The mesh of all ranks.
    pub world: Mesh,
    pub rank: Rank,
    /// The mesh of the current layer, the coordinates of the rank in it, and its submesh.
    pub mesh: Mesh,
    pub coord: Coord,
    pub submesh: Option<Submesh>,
    /// Position of the current layer in the global order.
    pub turn: u32,
    pub dtype: Dtype,
    pub menu: &'a dyn Menu,
    pub body: Body,
    names: HashMap<String, u32>,
    sequence: u32,
    /// The last number of the current layer.
    last: u32,
    /// The last message number reserved so far, the same on all ranks.
    pub reserved: u32,
    /// Whether all layers run on all ranks.
    pub is_whole: bool,
}

impl<'a> Builder<'a> {
    pub fn new(world: &Mesh, rank: Rank, dtype: Dtype, menu: &'a dyn Menu) -> Self {
        Self {
            world: *world,
            rank,
            mesh: *world,
            coord: world.coord(rank),
            submesh: None,
            turn: 0,
            dtype,
            menu,
            body: Body::default(),
            names: HashMap::new(),
            sequence: 0,
            last: u32::MAX,
            reserved: 0,
            is_whole: true,
        }
    }

    /// Switches to the mesh of another layer; false if the rank is not a member.
    pub fn enter(&mut self, submesh: Option<Submesh>) -> bool {
        if self.submesh == submesh {
            return true;
        }
        let there = match submesh {
            None => Some((self.world, self.world.coord(self.rank))),
            Some(submesh) => submesh
                .coord(self.rank)
                .map(|coord| (submesh.mesh(), coord)),
        };
        let Some((mesh, coord)) = there else {
            return false;
        };
        (self.mesh, self.coord, self.submesh) = (mesh, coord, submesh);
        true
    }

    /// Whether the rank is a member of a submesh.
    pub fn is_in(&self, submesh: Option<Submesh>) -> bool {
        self.submesh == submesh || submesh.is_none_or(|submesh| submesh.coord(self.rank).is_some())
    }

    /// The region of a tensor that the rank owns.
    pub fn owned(&self, distribution: &Distribution) -> Region {
        if distribution.submesh == self.submesh {
            distribution.owned_at(&self.mesh, &self.coord)
        } else {
            distribution.owned(&self.world, &self.world.coord(self.rank))
        }
    }

    /// The offset to the rank at coordinates in the current mesh.
    pub fn offset_to(&self, coord: &Coord) -> Offset {
        let there = self
            .submesh
            .map_or_else(|| self.world.rank(*coord), |submesh| submesh.rank(coord));
        self.world.offset(self.rank, there)
    }

    /// Reserves the [`NUMBERS`] message numbers after `sequence`.
    pub fn number_from(&mut self, sequence: u32) {
        (self.sequence, self.last) = (sequence, sequence + NUMBERS);
    }

    /// Reserves message numbers for `count` layers or parameters; returns the one before the first.
    pub fn take_numbers(&mut self, count: usize) -> u32 {
        let first = self.reserved;
        let next = u32::try_from(count)
            .ok()
            .and_then(|count| count.checked_mul(NUMBERS))
            .and_then(|all| first.checked_add(all));
        self.reserved = next.expect("a program has fewer exchanges than numbers");
        first
    }

    /// Reserves new message numbers, on all ranks alike. Not needed where all layers run on all ranks.
    pub fn reserve_numbers(&mut self) {
        let number = self.take_numbers(1);
        if !self.is_whole {
            self.number_from(number);
        }
    }

    /// The message number of an exchange between submeshes; taken on all ranks alike.
    pub fn number_of_movement(&mut self) -> u32 {
        self.reserve_numbers();
        self.next_sequence()
    }

    /// Allreduce of a view over the axes of a group; nothing for a group of one.
    pub fn allreduce(&mut self, layer: &str, phase: Phase, axes: AxisSet, view: View) {
        self.allreduce_all(layer, phase, axes, vec![view]);
    }

    /// An allreduce of several views at once over ranks of the current mesh.
    pub fn allreduce_all(&mut self, layer: &str, phase: Phase, axes: AxisSet, views: Vec<View>) {
        let sequence = self.next_sequence();
        if self.mesh.group_size(axes) > 1 {
            let kind = CollectiveKind::AllReduce { views };
            self.collective((layer, phase), sequence, axes, kind);
        }
    }

    /// A collective of the current mesh.
    pub fn collective(
        &mut self,
        (layer, phase): (&str, Phase),
        sequence: u32,
        group: AxisSet,
        kind: CollectiveKind,
    ) {
        let collective = Collective {
            sequence,
            group,
            submesh: self.submesh,
            kind,
        };
        self.push(layer, phase, Work::Collective(collective));
    }

    /// The next message number; called in the same order on every rank.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence += 1;
        assert!(
            self.sequence <= self.last,
            "more than {NUMBERS} exchanges and collectives have the numbers of one layer"
        );
        self.sequence
    }

    pub fn buffer(&mut self, name: &str, role: Role, dtype: Dtype, dims: [usize; 5]) -> BufferId {
        let name = self.unused(name);
        let id = BufferId(self.body.buffers.len() as u32);
        self.body.buffers.push(Buffer {
            name,
            role,
            dtype,
            dims,
            tensor: None,
            offset: Bytes(0),
        });
        id
    }

    /// A unique buffer name: the name itself, or with a number appended.
    fn unused(&mut self, name: &str) -> String {
        let Some(used) = self.names.get(name).copied() else {
            self.names.insert(name.to_owned(), 1);
            return name.to_owned();
        };
        let numbered = (used + 1..).map(|number| (number, format!("{name}.{number}")));
        let mut free = numbered.filter(|(_, name)| !self.names.contains_key(name));
        let (number, new) = free.next().expect("numbers never end");
        self.names.insert(name.to_owned(), number);
        self.names.insert(new.clone(), 1);
        new
    }

    /// A buffer for a region of a tensor. Nothing of an activation lies nowhere, so that ranks that hold nothing of it are
    /// alike.
    pub fn tensor_buffer(
        &mut self,
        name: &str,
        role: Role,
        tensor: u32,
        distribution: Distribution,
        region: Region,
    ) -> TensorBuffer {
        let is_placeless = region.is_empty() && (role.is_activation() || role == Role::Staging);
        let (region, halo_low) = if is_placeless {
            (Region::default(), [0; 5])
        } else {
            let owned = self.owned(&distribution);
            let halo_low = std::array::from_fn(|dim| owned.0[dim].start - region.0[dim].start);
            (region, halo_low)
        };
        let id = self.buffer(name, role, self.dtype.of_role(role), region.shape());
        self.body.buffers[id.0 as usize].tensor = Some(TensorRegion {
            id: tensor,
            distribution,
            halo_low,
            redundant: false,
        });
        TensorBuffer { id, region }
    }

    /// Marks whether the rank computes the halo of a buffer itself.
    pub fn set_redundant(&mut self, held: TensorBuffer, redundant: bool) {
        if let Some(tensor) = &mut self.body.buffers[held.id.0 as usize].tensor {
            tensor.redundant = redundant;
        }
    }

    /// The view of a whole buffer.
    pub fn whole(&self, id: BufferId) -> View {
        self.body.buffer(id).view(id)
    }

    /// A vector of sums in f64.
    pub fn sums(&mut self, name: &str, rows: usize, channels: usize) -> View {
        let id = self.buffer(
            name,
            Role::Statistics,
            Dtype::F64,
            [1, 1, 1, rows, channels],
        );
        self.whole(id)
    }

    /// A kernel whose implementation is chosen later.
    pub fn kernel(&mut self, layer: &str, phase: Phase, kernel: Kernel) {
        let origin = Origin {
            layer: layer.to_owned(),
            phase,
            turn: self.turn,
        };
        self.body.tasks.push(compute(origin, kernel));
    }

    pub fn push(&mut self, layer: &str, phase: Phase, work: Work) -> TaskId {
        let id = TaskId(self.body.tasks.len() as u32);
        let origin = Origin {
            layer: layer.to_owned(),
            phase,
            turn: self.turn,
        };
        self.body.tasks.push(Task {
            origin,
            after: Vec::new(),
            work,
        });
        id
    }

    pub fn output(&mut self, name: &str, view: View) {
        self.body.outputs.push(Output {
            name: name.to_owned(),
            view,
        });
    }

    pub fn fill(&mut self, layer: &str, phase: Phase, target: View, value: f64) {
        if !target.is_empty() {
            self.kernel(layer, phase, Kernel::Fill { target, value });
        }
    }

    /// The body after a pass up to [`LoweringPass::Select`].
    ///
    /// Errors: a kernel that the menu lacks.
    pub fn finish(
        mut self,
        fused: bool,
        limit: WorkspaceLimit,
        last: LoweringPass,
    ) -> Result<Body, MenuError> {
        // Messages to ranks of a later turn start in that turn.
        self.body.tasks.sort_by_key(|task| task.origin.turn);
        if fused && last >= LoweringPass::Fuse {
            fuse(&mut self.body, self.menu, &self.world);
        }
        if fused && last >= LoweringPass::Pack {
            self.pack(limit)?;
        }
        if last >= LoweringPass::Select {
            self.select(limit)?;
        }
        Ok(self.body)
    }
}
