//! Reads and writes of tasks.

use crate::{Kernel, View};

/// How a kernel accesses a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads the contents.
    Read,
    /// Overwrites every element without reading it.
    Write,
    /// Reads the contents and changes them.
    Update,
}

impl Access {
    /// Whether earlier contents are read.
    pub fn reads(self) -> bool {
        match self {
            Access::Read | Access::Update => true,
            Access::Write => false,
        }
    }

    /// Whether contents change.
    pub fn writes(self) -> bool {
        match self {
            Access::Write | Access::Update => true,
            Access::Read => false,
        }
    }
}

impl Kernel {
    /// Every view that the kernel reads from or writes to memory, and how. A view that is read and written in
    /// place is listed twice; what one part of a fused kernel passes to a later one is not listed again.
    pub fn accesses(&self) -> Vec<(View, Access)> {
        let Kernel::Fused { parts } = self else {
            return self.descriptor().accesses();
        };
        let mut all = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let operands = part.descriptor().accesses().into_iter();
            all.extend(operands.map(|operand| (at, operand)));
        }
        // Sorted by buffer, so that the time is linear in the number of parts.
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|&at| all[at].1.0.buffer);
        let mut is_left = vec![false; all.len()];
        for of_one in order.chunk_by(|&a, &b| all[a].1.0.buffer == all[b].1.0.buffer) {
            for (before, &at) in of_one.iter().enumerate() {
                let (part, (view, access)) = all[at];
                let leaves = |&earlier: &usize| {
                    let (by_part, (other, by)) = all[earlier];
                    by_part < part
                        && (by.writes() || access == Access::Read)
                        && other.region().holds(&view.region())
                };
                is_left[at] = of_one[..before].iter().any(leaves);
            }
        }
        let passing = all.into_iter().zip(is_left).filter(|(_, is_left)| !is_left);
        passing.map(|((_, access), _)| access).collect()
    }

    /// Whether each element of the target depends on the same element of each operand of its extents, and
    /// an operand may be the target.
    pub fn is_elementwise(&self) -> bool {
        self.descriptor().is_elementwise
    }
}
