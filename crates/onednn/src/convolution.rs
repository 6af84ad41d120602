//! A problem in the terms of the library: dims without those of one position, channels second.

use crate::api::{Api, DIMS_MAX, Dims, MemoryDesc, OneDnnError};
use crate::problem::{Problem, Tensor};

/// Extents of a convolution as the library counts them.
pub(crate) struct Shape<'p> {
    problem: &'p Problem,
    /// The first spatial dim that is passed to the library: 0 to 2 for D, H, W. Two always remain, for which it has the
    /// fastest code.
    first: usize,
}

impl<'p> Shape<'p> {
    pub(crate) fn of(problem: &'p Problem) -> Self {
        let is_flat = problem.taps.kernel[0] == 1
            && problem.input.extent[1] == 1
            && problem.output.extent[1] == 1;
        Self {
            problem,
            first: usize::from(is_flat),
        }
    }

    /// A list with an entry for each spatial dim.
    fn spatial(&self, entry: impl Fn(usize) -> i64) -> impl Iterator<Item = i64> {
        (self.first..3).map(entry)
    }

    fn dims(&self, entry: impl Fn(usize) -> i64) -> Dims {
        let mut dims = [0; DIMS_MAX];
        let entries = self.spatial(entry);
        dims.iter_mut()
            .zip(entries)
            .for_each(|(dim, entry)| *dim = entry);
        dims
    }

    pub(crate) fn strides(&self) -> Dims {
        self.dims(|dim| self.problem.taps.stride[dim] as i64)
    }

    /// Inputs left out between taps.
    pub(crate) fn dilations(&self) -> Dims {
        self.dims(|dim| self.problem.taps.dilation[dim] as i64 - 1)
    }

    /// Before and after the input.
    pub(crate) fn padding(&self) -> [Dims; 2] {
        [0, 1].map(|side| self.dims(|dim| self.problem.padding[dim][side]))
    }

    /// (N, C, spatial dims).
    fn extents(&self, tensor: &Tensor) -> Vec<i64> {
        let [n, .., c] = tensor.extent.map(|extent| extent as i64);
        let spatial = self.spatial(|dim| tensor.extent[dim + 1] as i64);
        [n, c].into_iter().chain(spatial).collect()
    }

    /// As it lies in memory.
    pub(crate) fn placed(&self, api: &Api, tensor: &Tensor) -> Result<MemoryDesc, OneDnnError> {
        let [n, .., c] = tensor.pitch.map(|pitch| pitch as i64);
        let spatial = self.spatial(|dim| tensor.pitch[dim + 1] as i64);
        let strides: Vec<i64> = [n, c].into_iter().chain(spatial).collect();
        api.strided(&self.extents(tensor), &strides)
    }

    /// Contiguous, channels last.
    pub(crate) fn dense(&self, api: &Api, tensor: &Tensor) -> Result<MemoryDesc, OneDnnError> {
        let mut pitch = [1; 5];
        for dim in (0..4).rev() {
            pitch[dim] = pitch[dim + 1] * tensor.extent[dim + 1];
        }
        let extent = tensor.extent;
        self.placed(api, &Tensor { extent, pitch })
    }

    /// (F, C, taps), with groups (groups, F / groups, C / groups, taps).
    fn weight_extents(&self) -> Vec<i64> {
        let problem = self.problem;
        let groups = problem.groups as i64;
        let [c, f] = [problem.input, problem.output].map(|tensor| tensor.extent[4] as i64);
        let of_groups = (groups > 1).then_some(groups);
        let taps = self.spatial(|dim| problem.taps.kernel[dim] as i64);
        let channels = [f / groups, c / groups];
        of_groups.into_iter().chain(channels).chain(taps).collect()
    }

    /// As programs have them: (Kd, Kh, Kw, C / groups, F).
    pub(crate) fn plain_weights(&self, api: &Api) -> Result<MemoryDesc, OneDnnError> {
        let problem = self.problem;
        let groups = problem.groups as i64;
        let [c, f] = [problem.input, problem.output].map(|tensor| tensor.extent[4] as i64);
        let tap = |dim: usize| {
            let inner = problem.taps.kernel[dim + 1..].iter().product::<usize>();
            inner as i64 * (c / groups) * f
        };
        let of_groups = (groups > 1).then_some(f / groups);
        let strides = of_groups.into_iter().chain([1, f]);
        let strides: Vec<i64> = strides.chain(self.spatial(tap)).collect();
        api.strided(&self.weight_extents(), &strides)
    }

    /// In a format that a primitive chooses.
    pub(crate) fn free_weights(&self, api: &Api) -> Result<MemoryDesc, OneDnnError> {
        api.in_any_format(&self.weight_extents())
    }

    /// A value for each channel of the output.
    pub(crate) fn bias(&self, api: &Api) -> Result<MemoryDesc, OneDnnError> {
        api.strided(&[self.problem.output.extent[4] as i64], &[1])
    }
}
