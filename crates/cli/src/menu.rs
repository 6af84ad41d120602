use crate::args::KernelSet;
use partita_local::ReferenceMenu;
use partita_program::{Menu, UnpinnedMenu};

/// The menu of a set of kernels.
pub fn of(kernels: KernelSet) -> &'static dyn Menu {
    match kernels {
        KernelSet::Reference => &ReferenceMenu,
        KernelSet::Unpinned => &UnpinnedMenu,
    }
}
