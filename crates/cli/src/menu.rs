use crate::args::KernelSet;
use partita_local::ReferenceMenu;
use partita_program::{Algorithm, Choice, KernelShape, Menu, MenuError};
use partita_space::Bytes;

/// Leaves every kernel open and reserves no workspace: for programs that are only costed.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnpinnedMenu;

impl Menu for UnpinnedMenu {
    fn choose(&self, _shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(Choice {
            algorithm: Algorithm::unpinned(),
            workspace: Bytes(0),
        })
    }
}

/// The menu of a set of kernels.
pub fn of(kernels: KernelSet) -> &'static dyn Menu {
    match kernels {
        KernelSet::Reference => &ReferenceMenu,
        KernelSet::Unpinned => &UnpinnedMenu,
    }
}
