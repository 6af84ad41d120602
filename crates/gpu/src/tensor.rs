//! Where the elements of a view lie in the memory of a device.

use partita_program::{Buffer, Dtype, View};

/// Work-items of a work-group.
pub(crate) const GROUP: usize = 64;

/// A box of elements in the arena of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub dtype: Dtype,
    /// First element, counted in elements from the start of the arena.
    pub offset: u64,
    pub extent: [usize; 5],
    /// Elements between neighbors; that along C is 1.
    pub pitch: [usize; 5],
}

/// As kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawView {
    offset: u64,
    pitch: [u64; 4],
}

/// As kernels take it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawExtent {
    n: [u32; 5],
    segments: u32,
}

impl Tensor {
    pub(crate) fn new(view: &View, buffers: &[Buffer]) -> Self {
        let buffer = &buffers[view.buffer.0 as usize];
        let (pitch, size) = (buffer.pitches(), buffer.dtype.size() as u64);
        let first: usize = (0..5).map(|dim| view.start[dim] * pitch[dim]).sum();
        Self {
            dtype: buffer.dtype,
            offset: buffer.offset.0 / size + first as u64,
            extent: view.extent,
            pitch,
        }
    }

    /// Contiguous elements.
    pub(crate) fn dense(dtype: Dtype, offset: u64, extent: [usize; 5]) -> Self {
        let mut pitch = [1; 5];
        for dim in (0..4).rev() {
            pitch[dim] = pitch[dim + 1] * extent[dim + 1];
        }
        Self {
            dtype,
            offset,
            extent,
            pitch,
        }
    }

    pub(crate) fn volume(&self) -> usize {
        self.extent.iter().product()
    }

    /// Positions of all samples.
    pub(crate) fn positions(&self) -> usize {
        self.extent[..4].iter().product()
    }

    /// One of its samples.
    pub(crate) fn sample(&self, n: usize) -> Self {
        let mut one = *self;
        one.offset += (n * self.pitch[0]) as u64;
        one.extent[0] = 1;
        one
    }

    /// Whether the elements from this dim on are contiguous.
    pub(crate) fn is_dense_from(&self, dim: usize) -> bool {
        let dense = Self::dense(self.dtype, 0, self.extent);
        (dim..5).all(|dim| self.extent[dim] <= 1 || self.pitch[dim] == dense.pitch[dim])
    }

    /// Samples as rows (1, 1, 1, N, features); none where the elements of a sample are not contiguous.
    pub(crate) fn rows(&self) -> Option<Self> {
        let features: usize = self.extent[1..].iter().product();
        let samples = self.extent[0];
        let pitch = if samples <= 1 {
            features
        } else {
            self.pitch[0]
        };
        self.is_dense_from(1).then(|| Self {
            extent: [1, 1, 1, samples, features],
            pitch: [samples * pitch, samples * pitch, samples * pitch, pitch, 1],
            ..*self
        })
    }

    pub(crate) fn raw(&self) -> RawView {
        let [n, d, h, w, _] = self.pitch.map(|pitch| pitch as u64);
        RawView {
            offset: self.offset,
            pitch: [n, d, h, w],
        }
    }

    pub(crate) fn raw_extent(&self) -> RawExtent {
        RawExtent {
            n: self.extent.map(|extent| extent as u32),
            segments: self.extent[4].div_ceil(GROUP) as u32,
        }
    }

    /// Work-groups that cover it row by row.
    pub(crate) fn groups(&self) -> usize {
        self.positions() * self.extent[4].div_ceil(GROUP)
    }
}

/// Collapses dims from `first` on that are contiguous in all of these boxes of one extent, so that rows get long.
pub(crate) fn collapse<const N: usize>(mut tensors: [Tensor; N], first: usize) -> [Tensor; N] {
    for dim in (first..4).rev() {
        let inner = tensors[0].extent[4];
        let is_joint = |tensor: &Tensor| tensor.extent[dim] == 1 || tensor.pitch[dim] == inner;
        let joined = inner * tensors[0].extent[dim];
        if !tensors.iter().all(is_joint) || joined > u32::MAX as usize / 2 {
            break;
        }
        for tensor in &mut tensors {
            tensor.extent[4] = joined;
            tensor.extent[dim] = 1;
        }
    }
    tensors
}
