//! The menu of a kernel set.

use crate::args::KernelSet;
use crate::here::THREADS;
use crate::train::kernel_set;
use partita_program::{Menu, UnpinnedMenu};
use partita_reference::ReferenceMenu;

/// The menu of a set of kernels.
pub fn of(kernels: KernelSet) -> Box<dyn Menu> {
    match kernels {
        KernelSet::Cpu => kernel_set::KernelSet::Cpu.menu(THREADS),
        KernelSet::Reference => Box::new(ReferenceMenu),
        KernelSet::Unpinned => Box::new(UnpinnedMenu),
    }
}
