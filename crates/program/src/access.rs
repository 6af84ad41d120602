use crate::{BufferId, Kernel, View};
use std::collections::HashMap;

/// How a kernel touches a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Needs the contents.
    Read,
    /// Sets every element without looking.
    Write,
    /// Needs the contents and changes them.
    Update,
}

impl Access {
    /// Whether contents from before are needed.
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
    /// Every view that passes between the kernel and memory, and how. A view that is read and written
    /// in place comes twice. What one part of a fused kernel leaves to a later one does not come
    /// again.
    pub fn accesses(&self) -> Vec<(View, Access)> {
        let Kernel::Fused { parts } = self else {
            return self.operands();
        };
        // By buffer, so that the time grows with the number of parts only.
        let mut earlier: HashMap<BufferId, Vec<(View, Access)>> = HashMap::new();
        let mut all = Vec::new();
        for part in parts {
            let operands = part.operands();
            all.extend(operands.iter().filter(|(view, access)| {
                let mut before = earlier.get(&view.buffer).into_iter().flatten();
                let leaves = |(other, by): &(View, Access)| {
                    (by.writes() || *access == Access::Read) && other.region().holds(&view.region())
                };
                !before.any(leaves)
            }));
            for (view, access) in operands {
                earlier.entry(view.buffer).or_default().push((view, access));
            }
        }
        all
    }

    /// Every view of every part, and how that part touches it.
    pub(crate) fn operands(&self) -> Vec<(View, Access)> {
        let operands = self.descriptor().operands.into_iter();
        operands
            .map(|operand| (*operand.view, operand.access))
            .collect()
    }

    /// Whether each element of the target depends on the same element of each operand of its extents, and
    /// an operand may be the target.
    pub fn is_elementwise(&self) -> bool {
        self.descriptor().is_elementwise
    }
}
