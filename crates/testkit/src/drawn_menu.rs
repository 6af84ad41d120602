//! Menus that give convolutions other configurations than the usual ones.

use crate::Draws;
use partita_program::{Choice, Configuration, KernelShape, Menu, MenuError, MicroBatches};
use partita_space::Bytes;

/// Draws by one stretch of a dim until it is covered, so that there are no more micro-batches than this.
const PARTS_MAX: usize = 6;

/// The kernels of a menu, all by one configuration.
pub struct Configured<'m> {
    /// The kernels.
    pub menu: &'m dyn Menu,
    /// How each is computed.
    pub configuration: Configuration,
}

impl Menu for Configured<'_> {
    /// Panics where the kernel has no such configuration.
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        let choice = self.menu.configured(shape, &self.configuration);
        Ok(choice.unwrap_or_else(|| panic!("{} of {shape}", self.configuration)))
    }
}

/// The kernels of a menu, as if random configurations of its convolutions were the fastest measured ones. Equal
/// kernels have the same.
pub struct DrawnMenu<'m> {
    /// The kernels.
    pub menu: &'m dyn Menu,
    /// Seed of the draws.
    pub seed: u64,
}

impl DrawnMenu<'_> {
    /// A random configuration; none for kernels that are not cut.
    pub fn draw(&self, shape: &KernelShape<'_>) -> Option<Configuration> {
        let extents = shape.cut_extents()?;
        let hash = shape.signature().bytes().fold(self.seed, |hash, byte| {
            hash.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte)
        });
        let mut draws = Draws::new(hash);
        let methods = self.menu.implementations(shape).ok()?;
        let method = |draws: &mut Draws| {
            let at = draws.between(0, methods.len() - 1);
            methods[at].algorithm.0.clone()
        };
        if draws.one_in(4) {
            return Some(Configuration::undivided(&method(&mut draws)));
        }
        let dim = draws.between(0, 3);
        let (mut parts, mut left) = (Vec::new(), extents[dim]);
        while left > 0 {
            let is_last = parts.len() + 1 == PARTS_MAX;
            let extent = if is_last {
                left
            } else {
                draws.between(1, left)
            };
            let count = draws.between(1, (left / extent).min(3));
            left -= extent * count;
            parts.push(MicroBatches {
                method: method(&mut draws),
                extent,
                count,
            });
        }
        (!parts.is_empty()).then_some(Configuration::Divided { dim, parts })
    }
}

impl Menu for DrawnMenu<'_> {
    fn choose(&self, shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        self.menu.choose(shape)
    }

    fn implementations(&self, shape: &KernelShape<'_>) -> Result<Vec<Choice>, MenuError> {
        self.menu.implementations(shape)
    }

    fn fastest_within(&self, shape: &KernelShape<'_>, limit: Bytes) -> Option<Choice> {
        let choice = self.menu.configured(shape, &self.draw(shape)?)?;
        (choice.workspace <= limit).then_some(choice)
    }

    fn divide(&self, shapes: &[KernelShape<'_>], total: Bytes) -> Vec<Option<Choice>> {
        let each = Bytes(total.0 / shapes.len().max(1) as u64);
        let choices = shapes.iter().map(|shape| self.fastest_within(shape, each));
        choices.collect()
    }

    fn fuses(&self) -> bool {
        self.menu.fuses()
    }
}
