//! Views of programs as the boxes and rows that the kernels of this crate take.

use crate::grid::{Grid, View, ViewMut};
use half::{bf16, f16};
use partita_program::Dtype;
use partita_program::fused::has_dense_samples;
use partita_run::{Block, BlockMut, Element, Memory};

/// A box as the kernels of this crate describe it.
pub(super) fn grid(extent: [usize; 5], pitch: [usize; 5]) -> Grid {
    Grid {
        samples: extent[0],
        extent: [extent[1], extent[2], extent[3]],
        channels: extent[4],
        pitch: [pitch[0], pitch[1], pitch[2], pitch[3]],
    }
}

/// A contiguous box.
pub(super) fn dense(extent: [usize; 5]) -> Grid {
    Grid::dense(extent[0], [extent[1], extent[2], extent[3]], extent[4])
}

/// One of the samples of a view.
pub(super) fn sample(view: &partita_program::View, n: usize) -> partita_program::View {
    let mut one = *view;
    one.start[0] += n;
    one.extent[0] = 1;
    one
}

/// Samples of features in one row each, where the elements of a sample are contiguous.
pub(super) fn rows(extent: [usize; 5], pitch: [usize; 5]) -> Option<Grid> {
    let features = extent[1..].iter().product();
    has_dense_samples(extent, pitch).then(|| Grid {
        pitch: [pitch[0], features, features, features],
        ..Grid::dense(extent[0], [1; 3], features)
    })
}

/// Panics if a block that must be contiguous is not.
pub(super) fn vector<T: Element>(block: Block<'_, T>) -> Block<'_, T> {
    assert_eq!(
        block.data().len(),
        block.extent.iter().product::<usize>(),
        "parameters, their gradients and sums are contiguous"
    );
    block
}

/// A box that a kernel of this crate reads.
pub(super) struct Input<'m, E: Element = f32> {
    block: Block<'m, E>,
    grid: Grid,
}

impl<'m, E: Element> Input<'m, E> {
    pub(super) fn new(block: Block<'m, E>) -> Self {
        let grid = grid(block.extent, block.pitch);
        Self { block, grid }
    }

    pub(super) fn view(&self) -> View<'_, E> {
        View::new(self.block.data(), &self.grid)
    }

    pub(super) fn block(&self) -> &Block<'m, E> {
        &self.block
    }

    /// Panics where a sample has gaps.
    pub(super) fn make_rows(&mut self) {
        let rows = rows(self.block.extent, self.block.pitch);
        self.grid = rows.unwrap_or_else(|| panic!("samples are contiguous rows"));
    }
}

/// A box that a kernel of this crate writes.
pub(super) struct Output<'m, E: Element = f32> {
    block: BlockMut<'m, E>,
    grid: Grid,
}

impl<'m, E: Element> Output<'m, E> {
    pub(super) fn new(block: BlockMut<'m, E>) -> Self {
        let grid = grid(block.extent, block.pitch);
        Self { block, grid }
    }

    pub(super) fn view(&mut self) -> ViewMut<'_, E> {
        ViewMut::new(self.block.data_mut(), &self.grid)
    }

    pub(super) fn block(&mut self) -> &mut BlockMut<'m, E> {
        &mut self.block
    }

    /// All elements, where they are contiguous.
    pub(super) fn slice(&mut self) -> &mut [E] {
        assert_eq!(
            self.block.data().len(),
            self.grid.elements(),
            "parameters, their gradients and moments are contiguous"
        );
        self.block.data_mut()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.block.box_bytes()
    }
}

/// A box of any dtype that is read element by element.
pub(super) enum AnyBlock<'m> {
    F32(Block<'m, f32>),
    F64(Block<'m, f64>),
    Bf16(Block<'m, bf16>),
    F16(Block<'m, f16>),
    I16(Block<'m, i16>),
}

impl<'m> AnyBlock<'m> {
    pub(super) fn of(memory: &'m Memory<'_>, view: &partita_program::View) -> Self {
        match memory.body().buffer(view.buffer).dtype {
            Dtype::F32 => Self::F32(memory.read(view)),
            Dtype::F64 => Self::F64(memory.read(view)),
            Dtype::Bf16 => Self::Bf16(memory.read(view)),
            Dtype::F16 => Self::F16(memory.read(view)),
            Dtype::I16 => Self::I16(memory.read(view)),
        }
    }

    pub(super) fn get(&self, index: [usize; 5]) -> f64 {
        fn at<T: Element + Into<f64>>(block: &Block<'_, T>, index: [usize; 5]) -> f64 {
            block.data()[block.at(index)].into()
        }
        match self {
            Self::F32(block) => at(block, index),
            Self::F64(block) => at(block, index),
            Self::Bf16(block) => at(block, index),
            Self::F16(block) => at(block, index),
            Self::I16(block) => at(block, index),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::F32(block) => block.box_bytes(),
            Self::F64(block) => block.box_bytes(),
            Self::Bf16(block) => block.box_bytes(),
            Self::F16(block) => block.box_bytes(),
            Self::I16(block) => block.box_bytes(),
        }
    }
}
