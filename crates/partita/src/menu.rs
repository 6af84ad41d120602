use crate::args::KernelSet;
use crate::kernel_set;
use crate::local_machine::THREADS;
use partita_local::ReferenceMenu;
use partita_program::{Menu, UnpinnedMenu};

/// The menu of a set of kernels.
pub fn of(kernels: KernelSet) -> Box<dyn Menu> {
    match kernels {
        KernelSet::Cpu => kernel_set::KernelSet::Cpu.menu(THREADS),
        KernelSet::Reference => Box::new(ReferenceMenu),
        KernelSet::Unpinned => Box::new(UnpinnedMenu),
    }
}
