//! Tensors read with several borders.

use super::{SAME, Sketch};
use crate::Draws;
use partita_graph::{Convolution, NodeId, Pool, PoolKind};
use partita_space::Window;

/// Readers of a tensor, by border.
#[derive(Clone, Copy)]
enum Reader {
    Periodic,
    Zeros,
    Inside,
}

impl Sketch {
    /// The sum of two or three layers that read one tensor, with a periodic border and with others.
    pub(super) fn two_borders(&mut self, draws: &mut Draws) {
        let mut readers = vec![
            Reader::Periodic,
            draws.pick(&[Reader::Zeros, Reader::Inside]),
        ];
        if draws.one_in(2) {
            readers.push(draws.pick(&[Reader::Periodic, Reader::Zeros, Reader::Inside]));
        }
        let first = draws.between(0, readers.len() - 1);
        readers.swap(0, first);
        let start = self.head;
        let made: Vec<NodeId> = readers
            .into_iter()
            .map(|reader| self.read(draws, start, reader))
            .collect();
        self.head = made[0];
        for &other in &made[1..] {
            let name = self.name("sum");
            let sum = self.builder.add(&name, self.head, other);
            self.head = sum.expect("shapes are equal");
        }
    }

    /// A layer that keeps the shape.
    fn read(&mut self, draws: &mut Draws, input: NodeId, reader: Reader) -> NodeId {
        let periodic = match reader {
            Reader::Periodic => true,
            Reader::Zeros => false,
            Reader::Inside => {
                let (name, kind) = (self.name("pool"), PoolKind::Max);
                let window = self.builder.windows(SAME);
                let pool = self.builder.pool(&name, input, Pool::new(kind, window));
                return pool.expect("a pooling that keeps the extents fits");
            }
        };
        let shape = self.builder.shape(input);
        let rank = self.builder.spatial_rank();
        let window = std::array::from_fn(|dim| {
            if dim < 3 - rank {
                return Window::ONE;
            }
            let pads = draws.between(0, shape.extent[dim].min(3));
            let pad_low = draws.between(0, pads);
            Window {
                kernel: pads + 1,
                pad_low,
                pad_high: pads - pad_low,
                ..Window::ONE
            }
        });
        let convolution = Convolution {
            filters: shape.channels,
            window,
            periodic,
            groups: 1,
            bias: draws.one_in(2),
        };
        let name = self.name("border");
        let made = self.builder.convolution(&name, input, convolution);
        made.expect("a convolution that keeps the extents fits")
    }
}
