//! A bench that runs single kernels on buffers.

use crate::{Draws, distance};
use half::{bf16, f16};
use partita_program::{
    Access, Body, Buffer, BufferId, Dtype, Kernel, KernelShape, Menu, Role, View,
};
use partita_run::{Element, Inputs, KernelTally, Kernels, Memory, RunError};
use partita_space::Bytes;
use std::collections::BTreeMap;
use std::ops::AddAssign;

/// Buffers with contents, on which single kernels run, each from the same initial contents.
#[derive(Default)]
pub struct Bench {
    body: Body,
    contents: Vec<Vec<f64>>,
}

/// Buffers after a kernel, and its tally.
pub struct KernelOutput {
    /// Contents of every buffer in memory order, exact in f64.
    pub contents: Vec<Vec<f64>>,
    /// Flops and bytes.
    pub worked: KernelTally,
}

impl Bench {
    /// The buffers.
    pub fn buffers(&self) -> &[Buffer] {
        &self.body.buffers
    }

    /// Contents of a buffer before any kernel.
    pub fn contents(&self, id: BufferId) -> &[f64] {
        &self.contents[id.0 as usize]
    }

    /// Adds a buffer with these contents; returns the view of all of it.
    pub fn put(&mut self, dtype: Dtype, dims: [usize; 5], values: Vec<f64>) -> View {
        assert_eq!(values.len(), dims.iter().product::<usize>());
        let id = BufferId(self.body.buffers.len() as u32);
        let role = match dtype {
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 => Role::Activation,
            Dtype::F64 => Role::Statistics,
            Dtype::I16 => Role::Staging,
        };
        let name = format!("buffer {}", id.0);
        let buffer = buffer(name, role, dtype, dims, self.body.arena);
        self.body.arena = end(&buffer);
        let view = buffer.view(id);
        self.body.buffers.push(buffer);
        let narrow = |value: f64| match dtype {
            Dtype::F32 => f64::from(value as f32),
            Dtype::F64 => value,
            Dtype::Bf16 => f64::from(bf16::from_f64(value)),
            Dtype::F16 => f64::from(f16::from_f64(value)),
            Dtype::I16 => f64::from(value as i16),
        };
        self.contents.push(values.into_iter().map(narrow).collect());
        view
    }

    /// Adds a buffer, filled with random numbers in `[-1, 1)` times `scale`.
    pub fn drawn(&mut self, dtype: Dtype, dims: [usize; 5], scale: f64, draws: &mut Draws) -> View {
        let count = dims.iter().product();
        let values = std::iter::repeat_with(|| scale * draws.unit());
        self.put(dtype, dims, values.take(count).collect())
    }

    /// A view of this extent inside a larger buffer of random contents.
    pub fn embedded(
        &mut self,
        dtype: Dtype,
        extent: [usize; 5],
        scale: f64,
        draws: &mut Draws,
    ) -> View {
        let start: [usize; 5] = std::array::from_fn(|_| draws.between(0, 1));
        let dims = std::array::from_fn(|dim| start[dim] + extent[dim] + draws.between(0, 1));
        let whole = self.drawn(dtype, dims, scale, draws);
        View {
            buffer: whole.buffer,
            start,
            extent,
        }
    }

    /// A bench with only the operands of a kernel, and the kernel on it.
    pub fn of_kernel(&self, kernel: &Kernel) -> (Self, Kernel) {
        let mut bench = Self::default();
        let mut moved = BTreeMap::new();
        let mut kernel = kernel.clone();
        kernel.each_view_mut(&mut |view| {
            let at = view.buffer.0 as usize;
            view.buffer = *moved.entry(at).or_insert_with(|| {
                let Buffer { dtype, dims, .. } = self.body.buffers[at];
                bench.put(dtype, dims, self.contents[at].clone()).buffer
            });
        });
        (bench, kernel)
    }

    /// Runs a kernel on the initial contents, with the algorithm of the catalog and a workspace full of NaN.
    ///
    /// Errors: those of the kernels. Panics if the catalog refuses the kernel.
    pub fn run(
        &self,
        kernel: &Kernel,
        menu: &dyn Menu,
        kernels: &mut dyn Kernels,
        inputs: &Inputs,
        progress: &mut dyn FnMut() -> bool,
    ) -> Result<KernelOutput, RunError> {
        let mut body = self.body.clone();
        let shape = KernelShape {
            kernel,
            buffers: &body.buffers,
        };
        let choice = menu.choose(&shape).expect("the menu offers every kernel");
        let elements = (choice.workspace.0 as usize).div_ceil(size_of::<f32>());
        let workspace = (elements > 0).then(|| {
            let id = BufferId(body.buffers.len() as u32);
            let (name, dims) = ("workspace".to_owned(), [1, 1, 1, 1, elements]);
            let buffer = buffer(name, Role::Workspace, Dtype::F32, dims, body.arena);
            body.arena = end(&buffer);
            body.buffers.push(buffer);
            body.buffer(id).view(id)
        });
        let mut arena = kernels.arena(0, body.arena)?;
        let memory = arena.memory(&body);
        for (id, values) in self.contents.iter().enumerate() {
            let view = whole(&body, id);
            match body.buffers[id].dtype {
                Dtype::F32 => set(&memory, &view, values, |value| value as f32),
                Dtype::F64 => set(&memory, &view, values, |value| value),
                Dtype::Bf16 => set(&memory, &view, values, bf16::from_f64),
                Dtype::F16 => set(&memory, &view, values, f16::from_f64),
                Dtype::I16 => set(&memory, &view, values, |value| value as i16),
            }
        }
        if let Some(view) = &workspace {
            memory.unpack(view, &vec![f32::NAN; view.volume()], false);
        }
        let algorithm = &choice.algorithm;
        let worked = kernels.execute(
            kernel,
            algorithm,
            workspace.as_ref(),
            &memory,
            inputs,
            progress,
        )?;
        kernels.finish()?;
        let contents = (0..self.contents.len()).map(|id| {
            let view = whole(&body, id);
            match body.buffers[id].dtype {
                Dtype::F32 => get::<f32>(&memory, &view),
                Dtype::F64 => get::<f64>(&memory, &view),
                Dtype::Bf16 => get::<bf16>(&memory, &view),
                Dtype::F16 => get::<f16>(&memory, &view),
                Dtype::I16 => get::<i16>(&memory, &view),
            }
        });
        Ok(KernelOutput {
            contents: contents.collect(),
            worked,
        })
    }

    /// The largest distance of two outputs of a kernel, over the buffers that it writes.
    ///
    /// Errors: a distance above the tolerance, or elements outside of its views that differ; as text.
    pub fn compare(
        &self,
        kernel: &Kernel,
        [got, expected]: [&KernelOutput; 2],
        tolerance: f64,
    ) -> Result<f64, String> {
        let mut worst = 0.0f64;
        for (id, (got, expected)) in got.contents.iter().zip(&expected.contents).enumerate() {
            // Most buffers belong to other kernels.
            if got == expected {
                continue;
            }
            let written = self.written(kernel, id);
            let pick = |values: &[f64], inside: bool| -> Vec<f64> {
                let chosen = values.iter().zip(&written).filter(|(_, w)| **w == inside);
                chosen.map(|(value, _)| *value).collect()
            };
            if pick(got, false) != pick(expected, false) {
                return Err(format!("writes outside of its views, buffer {id}"));
            }
            let (got, expected) = (pick(got, true), pick(expected, true));
            // Operands are of order 1, so what cancels to less has lost digits in any order of sums.
            let floor = 3e-2 * (got.len() as f64).sqrt().max(1.0);
            let far = distance(&got, &expected, floor);
            if far.is_nan() || far > tolerance {
                return Err(format!("{far:.2e} in buffer {id}\n{got:?}\n{expected:?}"));
            }
            worst = worst.max(far);
        }
        Ok(worst)
    }

    /// Which elements of a buffer a kernel writes.
    pub fn written(&self, kernel: &Kernel, id: usize) -> Vec<bool> {
        let buffer = &self.body.buffers[id];
        let pitch = buffer.pitches();
        let written: Vec<View> = kernel
            .accesses()
            .into_iter()
            .filter(|(view, access)| view.buffer.0 as usize == id && *access != Access::Read)
            .map(|(view, _)| view)
            .collect();
        (0..buffer.dims.iter().product())
            .map(|flat: usize| {
                written.iter().any(|view| {
                    (0..5).all(|dim| {
                        let at = flat / pitch[dim] % buffer.dims[dim];
                        (view.start[dim]..view.start[dim] + view.extent[dim]).contains(&at)
                    })
                })
            })
            .collect()
    }
}

fn buffer(name: String, role: Role, dtype: Dtype, dims: [usize; 5], offset: Bytes) -> Buffer {
    Buffer {
        name,
        role,
        dtype,
        dims,
        tensor: None,
        offset,
    }
}

fn end(buffer: &Buffer) -> Bytes {
    Bytes((buffer.offset + buffer.bytes()).0.next_multiple_of(64))
}

fn whole(body: &Body, id: usize) -> View {
    body.buffers[id].view(BufferId(id as u32))
}

fn set<T: Element + AddAssign>(
    memory: &Memory<'_>,
    view: &View,
    values: &[f64],
    narrow: impl Fn(f64) -> T,
) {
    let values: Vec<T> = values.iter().map(|&value| narrow(value)).collect();
    memory.unpack(view, &values, false);
}

fn get<T: Element + Into<f64>>(memory: &Memory<'_>, view: &View) -> Vec<f64> {
    let mut packed = Vec::new();
    memory.pack::<T>(view, &mut packed);
    packed.into_iter().map(Into::into).collect()
}
