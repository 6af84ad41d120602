//! The body of one rank while it grows.

use partita_program::{
    Algorithm, Body, Buffer, BufferId, Dtype, Home, Kernel, KernelShape, Menu, MenuError, Origin,
    Output, Phase, Place, Role, Task, TaskId, View, Work,
};
use partita_space::{Bytes, Coord, Mesh, Region};
use std::collections::HashMap;

/// A buffer that holds a region of a tensor, frame included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub id: BufferId,
    /// Global region of the whole buffer.
    pub region: Region,
}

impl Held {
    /// The view of a global region.
    pub fn view(&self, region: &Region) -> View {
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
    pub mesh: &'a Mesh,
    pub coord: Coord,
    pub dtype: Dtype,
    menu: &'a dyn Menu,
    body: Body,
    names: HashMap<String, u32>,
    sequence: u32,
    error: Option<MenuError>,
}

impl<'a> Builder<'a> {
    pub fn new(mesh: &'a Mesh, coord: Coord, dtype: Dtype, menu: &'a dyn Menu) -> Self {
        Self {
            mesh,
            coord,
            dtype,
            menu,
            body: Body::default(),
            names: HashMap::new(),
            sequence: 0,
            error: None,
        }
    }

    /// A number for the next exchange or collective; called alike on every rank.
    pub fn next_sequence(&mut self) -> u32 {
        self.sequence += 1;
        self.sequence
    }

    pub fn buffer(&mut self, name: &str, role: Role, dtype: Dtype, dims: [usize; 5]) -> BufferId {
        let used = self.names.entry(name.to_owned()).or_default();
        *used += 1;
        let name = if *used == 1 {
            name.to_owned()
        } else {
            format!("{name}.{used}")
        };
        let id = BufferId(self.body.buffers.len() as u32);
        self.body.buffers.push(Buffer {
            name,
            role,
            dtype,
            dims,
            home: None,
            offset: Bytes(0),
        });
        id
    }

    /// A buffer for the part `region` of a tensor.
    pub fn held(
        &mut self,
        name: &str,
        role: Role,
        tensor: u32,
        place: Place,
        region: Region,
    ) -> Held {
        let owned = place.owned(self.mesh, &self.coord);
        let low = std::array::from_fn(|dim| {
            let low = owned.0[dim].start - region.0[dim].start;
            usize::try_from(low).expect("a buffer begins at or before its owned region")
        });
        let id = self.buffer(name, role, self.dtype, region.shape());
        self.body.buffers[id.0 as usize].home = Some(Home { tensor, place, low });
        Held { id, region }
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

    pub fn kernel(&mut self, layer: &str, phase: Phase, kernel: Kernel) {
        let shape = KernelShape {
            kernel: &kernel,
            buffers: &self.body.buffers,
        };
        let choice = match self.menu.choose(&shape) {
            Ok(choice) => choice,
            Err(error) => {
                self.error.get_or_insert(error);
                return;
            }
        };
        let workspace = (choice.workspace.0 > 0).then(|| {
            let elements = (choice.workspace.0 as usize).div_ceil(self.dtype.size());
            let name = format!("{layer}.workspace");
            let id = self.buffer(&name, Role::Workspace, self.dtype, [1, 1, 1, 1, elements]);
            self.whole(id)
        });
        let algorithm: Algorithm = choice.algorithm;
        self.push(
            layer,
            phase,
            Work::Compute {
                kernel,
                algorithm,
                workspace,
            },
        );
    }

    pub fn push(&mut self, layer: &str, phase: Phase, work: Work) -> TaskId {
        let id = TaskId(self.body.tasks.len() as u32);
        let origin = Origin {
            layer: layer.to_owned(),
            phase,
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

    /// The body, without dependencies and offsets.
    pub fn finish(self) -> Result<Body, MenuError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.body),
        }
    }
}
