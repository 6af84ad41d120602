//! Operands of kernels and their constraints.

use crate::{Access, Taps, View};
use partita_space::Resampling;

/// A view that a kernel reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'k> {
    /// Name of the field of the kernel.
    pub name: &'static str,
    /// The view.
    pub view: &'k View,
    /// How it is accessed.
    pub access: Access,
    /// Type of its elements.
    pub elements: Elements<'k>,
    /// Constraint on its extents.
    pub extents: Extents<'k>,
    /// How it may hold a partial sum.
    pub sum_role: SumRole<'k>,
}

/// Types of elements.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'k> {
    /// The type of the program.
    Program,
    /// The type of the program, or of sums.
    ProgramOrSums,
    /// f64.
    Sums,
    /// Any float type, as read from the dataset.
    Floats,
    /// The type of another view.
    Like(&'k View),
    /// Any.
    Any,
}

/// Rules for the extents of a view.
#[derive(Clone, Copy, Debug)]
pub enum Extents<'k> {
    /// None.
    Any,
    /// Exactly these.
    Are([usize; 5]),
    /// Those of another operand; with its name.
    Like(&'static str, &'k View),
    /// The volume of another operand.
    Volume(&'k View),
    /// The number of samples of another operand.
    Samples(&'k View),
    /// Weights from input to output channels, in groups.
    Weights {
        /// The window.
        taps: &'k Taps,
        /// Groups of channels.
        groups: usize,
        /// Channels of the input.
        inputs: usize,
        /// Channels of the output.
        outputs: usize,
        /// Whether the weights may be packed; those are checked where they are packed.
        may_be_packed: bool,
    },
    /// Every input of every tap of an output, and nothing else.
    Window {
        /// Name of the output.
        name: &'static str,
        /// The output.
        of: &'k View,
        /// The window.
        taps: &'k Taps,
    },
    /// The input of a pooling.
    Pooled {
        /// Name of the output.
        name: &'static str,
        /// The output.
        of: &'k View,
        /// The window.
        taps: &'k Taps,
        /// Inputs before the first tap of the first output.
        shift: &'k [i64; 3],
        /// Whether each output needs a tap inside the input.
        needs_tap: bool,
    },
    /// The input of a resampling.
    Resampled {
        /// Name of the output.
        name: &'static str,
        /// The output.
        of: &'k View,
        /// The map along each spatial dim.
        maps: &'k [Resampling; 3],
    },
}

/// How an operand may hold a partial sum over ranks.
#[derive(Clone, Copy, Debug)]
pub enum SumRole<'k> {
    /// Read; must not be a partial sum, as the kernel is not linear in it.
    Complete,
    /// Read; a sum of its own along [`crate::Program::local_statistics`], complete along all other axes.
    Statistics,
    /// Read; a count over all micro-batches, complete over ranks.
    OfStep,
    /// Read; may be a partial sum, as the result is linear in it.
    Linear,
    /// One of two factors, of which at most one is a partial sum.
    Factor,
    /// Written: a sum over these indices, partial where they are split over ranks.
    Result(Over<'k>),
}

/// The indices over which a result is summed; a rank that holds a part of them writes a partial sum.
#[derive(Clone, Copy, Debug)]
pub enum Over<'k> {
    /// None.
    Nothing,
    /// None; the result is zero.
    Zeros,
    /// Samples and positions of a tensor.
    Positions(&'k View),
    /// Positions of a tensor, for each sample.
    Space(&'k View),
    /// Channels of a tensor.
    Channels(&'k View),
    /// All elements of some tensors.
    All(&'k [View]),
    /// The channels that weights and input have in common.
    Products,
}

impl<'k> Operand<'k> {
    #[inline]
    fn new(name: &'static str, view: &'k View, access: Access, sum_role: SumRole<'k>) -> Self {
        Self {
            name,
            view,
            access,
            elements: Elements::Program,
            extents: Extents::Any,
            sum_role,
        }
    }

    #[inline]
    pub(super) fn elements(self, elements: Elements<'k>) -> Self {
        Self { elements, ..self }
    }

    #[inline]
    pub(super) fn extents(self, extents: Extents<'k>) -> Self {
        Self { extents, ..self }
    }

    #[inline]
    pub(super) fn like(self, name: &'static str, view: &'k View) -> Self {
        self.extents(Extents::Like(name, view))
    }

    #[inline]
    pub(super) fn of(self, extents: [usize; 5]) -> Self {
        self.extents(Extents::Are(extents))
    }

    /// One element per channel.
    #[inline]
    pub(super) fn vector(self, channels: usize) -> Self {
        self.of([1, 1, 1, 1, channels])
    }

    /// Sums in f64.
    #[inline]
    pub(super) fn sums_of(self, extents: [usize; 5]) -> Self {
        self.elements(Elements::Sums).of(extents)
    }

    /// Sums in f64 over all micro-batches.
    #[inline]
    pub(super) fn counts_of(self, extents: [usize; 5]) -> Self {
        let sum_role = SumRole::OfStep;
        Self { sum_role, ..self }.sums_of(extents)
    }

    /// Sums of a batch norm in f64.
    #[inline]
    pub(super) fn statistics_of(self, extents: [usize; 5]) -> Self {
        let sum_role = SumRole::Statistics;
        Self { sum_role, ..self }.sums_of(extents)
    }

    #[inline]
    pub(super) fn over(self, over: Over<'k>) -> Self {
        let sum_role = SumRole::Result(over);
        Self { sum_role, ..self }
    }
}

/// Read; must not be a partial sum.
#[inline]
pub(super) fn read<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Read, SumRole::Complete)
}

/// Read; may be a partial sum.
#[inline]
pub(super) fn linear<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Read, SumRole::Linear)
}

/// Read; one of two factors.
#[inline]
pub(super) fn factor<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Read, SumRole::Factor)
}

/// Updated in place.
#[inline]
pub(super) fn state<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Update, SumRole::Complete)
}

/// Overwritten.
#[inline]
pub(super) fn write<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Write, SumRole::Result(Over::Nothing))
}

/// Overwritten or accumulated.
#[inline]
pub(super) fn result<'k>(name: &'static str, view: &'k View, accumulate: bool) -> Operand<'k> {
    let access = if accumulate {
        Access::Update
    } else {
        Access::Write
    };
    Operand::new(name, view, access, SumRole::Result(Over::Nothing))
}
