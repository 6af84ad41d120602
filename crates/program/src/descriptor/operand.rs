//! Operands of kernels and what is asked of them.

use crate::{Access, Taps, View};

/// A view that a kernel reads or writes.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'k> {
    /// The letter or word of the field.
    pub name: &'static str,
    /// Where it lies.
    pub view: &'k View,
    /// How it is touched.
    pub access: Access,
    /// What its elements are.
    pub elements: Elements<'k>,
    /// Which extents it must have.
    pub extents: Extents<'k>,
    /// What it has to do with sums over ranks.
    pub sum_role: SumRole<'k>,
}

/// Types of elements.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'k> {
    /// The type of the program.
    Program,
    /// The type of the program, or sums that are cleared.
    ProgramOrSums,
    /// f64.
    Sums,
    /// Floats, as they were read.
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
    /// Just these.
    Are([usize; 5]),
    /// Those of another operand, by its name.
    Like(&'static str, &'k View),
    /// As many elements as another operand has.
    Volume(&'k View),
    /// As many samples as another operand has.
    Samples(&'k View),
    /// Weights from so many channels to so many in groups.
    Weights {
        /// The window.
        taps: &'k Taps,
        /// Of the channels.
        groups: usize,
        /// Channels of the input.
        inputs: usize,
        /// Channels of the output.
        outputs: usize,
        /// Whether packed weights may stand here, which are checked where they are packed.
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
    /// What is pooled to an output.
    Pooled {
        /// Name of the output.
        name: &'static str,
        /// The output.
        of: &'k View,
        /// The window.
        taps: &'k Taps,
        /// Inputs before the first tap of the first output.
        shift: &'k [i64; 3],
        /// Whether each output needs a tap inside.
        needs_tap: bool,
    },
}

/// What an operand has to do with sums over ranks.
#[derive(Clone, Copy, Debug)]
pub enum SumRole<'k> {
    /// Read, and not linear in it: it must be no partial sum.
    Complete,
    /// Read, and what is written is linear in it: partial sums pass.
    Linear,
    /// One of two factors, at most one of them a partial sum.
    Factor,
    /// Written: a sum of what is linear, over more than what the rank has.
    Result(Over<'k>),
}

/// Over what is summed: a rank that has a part of it leaves a partial sum.
#[derive(Clone, Copy, Debug)]
pub enum Over<'k> {
    /// Nothing.
    Nothing,
    /// Nothing, and there are zeros.
    Zeros,
    /// Samples and positions of a tensor.
    Positions(&'k View),
    /// Channels of a tensor.
    Channels(&'k View),
    /// All elements of some tensors.
    All(&'k [View]),
    /// The channels between weights and what they are multiplied with.
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

    /// A number for each channel.
    #[inline]
    pub(super) fn vector(self, channels: usize) -> Self {
        self.of([1, 1, 1, 1, channels])
    }

    /// Sums in f64.
    #[inline]
    pub(super) fn sums_of(self, extents: [usize; 5]) -> Self {
        self.elements(Elements::Sums).of(extents)
    }

    #[inline]
    pub(super) fn over(self, over: Over<'k>) -> Self {
        let sum_role = SumRole::Result(over);
        Self { sum_role, ..self }
    }
}

/// Read, and must be no partial sum.
#[inline]
pub(super) fn read<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Read, SumRole::Complete)
}

/// Read, and may be a partial sum.
#[inline]
pub(super) fn linear<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Read, SumRole::Linear)
}

/// Read, and multiplied with another one.
#[inline]
pub(super) fn factor<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Read, SumRole::Factor)
}

/// Read and changed, whatever is written besides.
#[inline]
pub(super) fn state<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Update, SumRole::Complete)
}

/// Written.
#[inline]
pub(super) fn write<'k>(name: &'static str, view: &'k View) -> Operand<'k> {
    Operand::new(name, view, Access::Write, SumRole::Result(Over::Nothing))
}

/// Written, or added to what is there.
#[inline]
pub(super) fn result<'k>(name: &'static str, view: &'k View, accumulate: bool) -> Operand<'k> {
    let access = if accumulate {
        Access::Update
    } else {
        Access::Write
    };
    Operand::new(name, view, access, SumRole::Result(Over::Nothing))
}
