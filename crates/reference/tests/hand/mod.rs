//! Hand-written bodies, and a bench that runs single kernels on buffers.

#![allow(dead_code, reason = "each test file uses its own part")]

use half::{bf16, f16};
use partita_program::random::unit_draw;
use partita_program::{
    Algorithm, Body, Buffer, BufferId, Collective, CollectiveKind, Dtype, Exchange, Kernel, Origin,
    Phase, Role, Task, TaskId, View, Work,
};
use partita_run::{Arena, Inputs, KernelTally, Kernels, RunError};
use partita_space::{AxisSet, Bytes, Mesh};
use partita_testkit::{Real, ReferenceKernels};

/// A stream of seeded random numbers.
pub struct Random {
    seed: u64,
    next: u64,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { seed, next: 0 }
    }

    pub fn unit(&mut self) -> f64 {
        self.next += 1;
        unit_draw(self.seed, 0, 0, 0, self.next)
    }

    /// In `low..=high`.
    pub fn pick(&mut self, low: usize, high: usize) -> usize {
        low + (self.unit() * (high - low + 1) as f64) as usize
    }

    /// In (-1, 1).
    pub fn values(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| 2.0 * self.unit() - 1.0).collect()
    }
}

pub fn algorithm() -> Algorithm {
    Algorithm("reference".to_owned())
}

pub fn add_buffer(body: &mut Body, dtype: Dtype, dims: [usize; 5]) -> BufferId {
    let id = BufferId(body.buffers.len() as u32);
    let buffer = Buffer {
        name: format!("buffer {}", id.0),
        role: Role::Activation,
        dtype,
        dims,
        tensor: None,
        offset: body.arena,
    };
    body.arena = Bytes((body.arena + buffer.bytes()).0.next_multiple_of(64));
    body.buffers.push(buffer);
    id
}

pub fn add_task(body: &mut Body, layer: &str, after: &[usize], work: Work) -> usize {
    body.tasks.push(Task {
        origin: Origin {
            layer: layer.to_owned(),
            phase: Phase::Forward,
            turn: 0,
        },
        after: after.iter().map(|&id| TaskId(id as u32)).collect(),
        work,
    });
    body.tasks.len() - 1
}

pub fn compute(kernel: Kernel) -> Work {
    Work::Compute {
        kernel,
        algorithm: algorithm(),
        workspace: None,
    }
}

pub fn all_reduce(sequence: u32, group: AxisSet, view: View) -> Work {
    Work::Collective(Collective {
        sequence,
        group,
        submesh: None,
        kind: CollectiveKind::AllReduce { views: vec![view] },
    })
}

pub fn exchange(exchange: Exchange) -> Work {
    Work::Exchange(exchange)
}

/// Buffers with contents, on which single kernels run.
pub struct Bench {
    pub body: Body,
    pub arena: Arena,
    pub inputs: Inputs,
    pub mesh: Mesh,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            body: Body::default(),
            arena: Arena::new(Bytes(0)),
            inputs: Inputs::default(),
            mesh: Mesh::new([1; 7]),
        }
    }

    /// A buffer of its own with these contents; returns the view of all of it.
    pub fn put(&mut self, dtype: Dtype, dims: [usize; 5], values: &[f64]) -> View {
        assert_eq!(values.len(), dims.iter().product::<usize>());
        let views: Vec<_> = (0..self.body.buffers.len())
            .map(|at| self.body.buffers[at].view(BufferId(at as u32)))
            .collect();
        let old: Vec<_> = views.iter().map(|view| self.get(view)).collect();
        let id = add_buffer(&mut self.body, dtype, dims);
        self.arena = Arena::new(self.body.arena);
        let new = self.body.buffer(id).view(id);
        for (view, values) in views.iter().zip(&old) {
            self.set(view, values);
        }
        self.set(&new, values);
        new
    }

    /// A view of this extent somewhere inside a larger buffer, all of it random.
    pub fn embedded(&mut self, dtype: Dtype, extent: [usize; 5], random: &mut Random) -> View {
        let low: [usize; 5] = std::array::from_fn(|_| random.pick(0, 1));
        let dims: [usize; 5] =
            std::array::from_fn(|dim| low[dim] + extent[dim] + random.pick(0, 1));
        let values = random.values(dims.iter().product());
        let whole = self.put(dtype, dims, &values);
        View {
            buffer: whole.buffer,
            start: low,
            extent,
        }
    }

    pub fn set(&mut self, view: &View, values: &[f64]) {
        let dtype = self.body.buffer(view.buffer).dtype;
        let memory = self.arena.memory(&self.body);
        match dtype {
            Dtype::F32 => {
                let values: Vec<_> = values.iter().map(|&value| value as f32).collect();
                memory.unpack(view, &values, false);
            }
            Dtype::F64 => memory.unpack(view, values, false),
            Dtype::F16 => {
                let values: Vec<_> = values.iter().map(|&value| f16::from_f64(value)).collect();
                memory.unpack(view, &values, false);
            }
            Dtype::Bf16 => {
                let values: Vec<_> = values.iter().map(|&value| bf16::from_f64(value)).collect();
                memory.unpack(view, &values, false);
            }
            Dtype::I16 => {
                let values: Vec<_> = values.iter().map(|&value| value as i16).collect();
                memory.unpack(view, &values, false);
            }
        }
    }

    pub fn get(&mut self, view: &View) -> Vec<f64> {
        let dtype = self.body.buffer(view.buffer).dtype;
        let memory = self.arena.memory(&self.body);
        match dtype {
            Dtype::F32 => {
                let mut values = Vec::<f32>::new();
                memory.pack(view, &mut values);
                values.into_iter().map(f64::from).collect()
            }
            Dtype::F64 => {
                let mut values = Vec::new();
                memory.pack(view, &mut values);
                values
            }
            Dtype::F16 => {
                let mut values = Vec::<f16>::new();
                memory.pack(view, &mut values);
                values.into_iter().map(f64::from).collect()
            }
            Dtype::Bf16 => {
                let mut values = Vec::<bf16>::new();
                memory.pack(view, &mut values);
                values.into_iter().map(f64::from).collect()
            }
            Dtype::I16 => {
                let mut values = Vec::<i16>::new();
                memory.pack(view, &mut values);
                values.into_iter().map(f64::from).collect()
            }
        }
    }

    pub fn run(&mut self, kernel: &Kernel) -> KernelTally {
        self.run_as::<f64>(kernel)
    }

    pub fn run_as<T: Real>(&mut self, kernel: &Kernel) -> KernelTally {
        self.try_run::<T>(kernel, 0, &mut || true)
            .expect("the kernel runs to its end")
    }

    pub fn try_run<T: Real>(
        &mut self,
        kernel: &Kernel,
        rank: usize,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<KernelTally, RunError> {
        let memory = self.arena.memory(&self.body);
        let mut kernels = ReferenceKernels::<T>::new(self.mesh, rank);
        kernels.execute(kernel, &algorithm(), None, &memory, &self.inputs, progress)
    }
}

pub fn close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    let difference: f64 = got.iter().zip(expected).map(|(a, b)| (a - b).powi(2)).sum();
    let norm: f64 = expected.iter().map(|b| b * b).sum();
    assert!(
        difference.sqrt() <= tolerance * norm.sqrt().max(1e-12),
        "{got:?} is not {expected:?}"
    );
}
