//! What a kernel of a program needs while it is given to a device, or while its workspace is measured.

use crate::arg::Arg;
use crate::device::{DeviceError, KernelError};
use crate::driver::BufferHandle;
use crate::method::Method;
use crate::queue::{Message, Queue};
use crate::tensor::{GROUP, Tensor};
use partita_program::{Buffer, Dtype, View};
use partita_run::Inputs;
use partita_space::{Coord, Mesh};

/// The rank and its place in the mesh.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankPosition {
    pub mesh: Mesh,
    pub coord: Coord,
}

/// Where commands go.
pub(crate) struct Target<'r> {
    pub queue: &'r mut Queue,
    pub arena: BufferHandle,
    /// Type of activations.
    pub activations: Dtype,
}

/// A running kernel of a program; without a target only its workspace is measured.
pub(crate) struct Run<'r> {
    pub buffers: &'r [Buffer],
    pub inputs: &'r Inputs,
    pub position: RankPosition,
    /// Multiprocessors of the device.
    pub units: usize,
    /// How sums of convolutions are taken.
    pub method: Method,
    pub target: Option<Target<'r>>,
    /// Start of the workspace, and what is taken of it, in bytes.
    start: u64,
    taken: u64,
    /// The most that was taken at once.
    most: u64,
    /// Its end; none while it is measured.
    end: Option<u64>,
}

/// Parts of a workspace begin at multiples of this, as every type of element may.
const ALIGNMENT: u64 = 8;

impl<'r> Run<'r> {
    pub(crate) fn new(
        (buffers, inputs, position): (&'r [Buffer], &'r Inputs, RankPosition),
        units: usize,
        workspace: Option<&View>,
        target: Option<Target<'r>>,
    ) -> Self {
        let first = workspace.map_or(0, |view| Tensor::new(view, buffers).offset * 4);
        let size = workspace.map_or(0, |view| 4 * view.volume() as u64);
        let end = target.is_some().then_some(first + size);
        Self {
            buffers,
            inputs,
            position,
            units,
            method: Method::Parts,
            target,
            start: first.next_multiple_of(ALIGNMENT),
            taken: 0,
            most: 0,
            end,
        }
    }

    pub(crate) fn tensor(&self, view: &View) -> Tensor {
        Tensor::new(view, self.buffers)
    }

    pub(crate) fn optional(&self, view: Option<&View>) -> Option<Tensor> {
        view.map(|view| self.tensor(view))
    }

    /// Workspace for this many elements; where it begins, in elements.
    pub(crate) fn scratch(&mut self, dtype: Dtype, count: usize) -> u64 {
        let first = self.start + self.taken;
        let bytes = count as u64 * dtype.size() as u64;
        self.taken += bytes.next_multiple_of(ALIGNMENT);
        self.most = self.most.max(self.taken);
        let lies_inside = self.end.is_none_or(|end| first + bytes <= end);
        assert!(
            lies_inside,
            "the workspace is that which the catalog asked for"
        );
        first / dtype.size() as u64
    }

    /// Frees the workspace for a part of a fused kernel that begins when the ones before it have ended.
    pub(crate) fn next_part(&mut self) {
        self.taken = 0;
    }

    /// The same for a micro-batch, which is computed by this method.
    pub(crate) fn next_piece(&mut self, method: Method) {
        self.method = method;
        self.next_part();
    }

    /// The most that was taken, and what the workspace may lack to begin at a multiple of the alignment.
    pub(crate) fn workspace(&self) -> u64 {
        if self.most == 0 {
            0
        } else {
            self.most + ALIGNMENT
        }
    }

    /// Constants on the device.
    pub(crate) fn table<T: Constant>(&mut self, values: &[T]) -> Result<Arg, KernelError> {
        let Some(target) = &mut self.target else {
            return Ok(Arg::Memory(BufferHandle::default()));
        };
        let bytes = values.iter().flat_map(|&value| value.to_bytes()).collect();
        Ok(Arg::Memory(target.queue.table(bytes)?))
    }

    /// This many counters, set to zero.
    pub(crate) fn counters(&mut self, count: usize) -> Result<Arg, KernelError> {
        match &mut self.target {
            Some(target) => Ok(Arg::Memory(target.queue.counters(count)?)),
            None => Ok(Arg::Memory(BufferHandle::default())),
        }
    }

    /// Where a kernel notes a number that is no class, and what it writes before that; the next wait then fails with
    /// this message.
    pub(crate) fn invalid_class(&mut self, message: Message) -> [Arg; 2] {
        let (memory, check) = match &mut self.target {
            Some(target) => target.queue.check(message),
            None => (BufferHandle::default(), 0),
        };
        [Arg::Memory(memory), Arg::Uint(check as u32)]
    }

    /// Runs a kernel on this many work-groups. The arena is its first argument.
    pub(crate) fn groups(
        &mut self,
        name: &'static str,
        args: &[Arg],
        groups: usize,
        size: usize,
    ) -> Result<(), KernelError> {
        let Some(target) = &mut self.target else {
            return Ok(());
        };
        if groups == 0 {
            return Ok(());
        }
        if groups * size > u32::MAX as usize {
            let device = target.queue.device().facts().name.clone();
            return Err(DeviceError::Large {
                device,
                kernel: name,
            }
            .into());
        }
        let mut all = vec![Arg::Memory(target.arena)];
        all.extend_from_slice(args);
        let kernel = (name, target.activations);
        let command = target.queue.launch(kernel, &all, groups, size)?;
        target.queue.note_command(command);
        Ok(())
    }

    /// Runs a kernel on each element of a box.
    pub(crate) fn elements(
        &mut self,
        name: &'static str,
        args: &[Arg],
        of: &Tensor,
    ) -> Result<(), KernelError> {
        self.groups(name, args, of.groups(), GROUP)
    }

    /// Runs a kernel on this many work-items.
    pub(crate) fn items(
        &mut self,
        name: &'static str,
        args: &[Arg],
        count: usize,
    ) -> Result<(), KernelError> {
        self.groups(name, args, count.div_ceil(GROUP), GROUP)
    }
}

/// Constants that kernels read.
pub(crate) trait Constant: Copy {
    /// As they lie in memory.
    fn to_bytes(self) -> Vec<u8>;
}

impl Constant for u32 {
    fn to_bytes(self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }
}

impl Constant for f32 {
    fn to_bytes(self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }
}

impl Constant for f64 {
    fn to_bytes(self) -> Vec<u8> {
        self.to_ne_bytes().to_vec()
    }
}
