//! Random models with attention between the positions of a volume, as of a vision transformer or a UNETR.

use super::{Case, Sketch, or_short, random_layer_strategy};
use crate::Draws;
use partita_graph::{Convolution, Op, PadMode, Resample};
use partita_space::Window;

/// Draws a model with position embeddings, attention between all positions, class tokens and reshapes, and a strategy over
/// all axes.
pub fn random_token_case(seed: u64) -> Case {
    let mut draws = Draws::new(seed);
    loop {
        let mut sketch = Sketch::empty(&mut draws, [13, 6, 4]);
        sketch.most_filters = 4;
        sketch.tokens(&mut draws);
        for _ in 0..draws.between(1, 3) {
            if draws.one_in(3) {
                sketch.layer(&mut draws);
            } else {
                sketch.attend(&mut draws);
            }
        }
        let graph = sketch.finish(&mut draws);
        let batch = draws.between(1, 4);
        for _ in 0..20 {
            let strategy = random_layer_strategy(&mut draws, &graph, batch);
            if strategy.check(&graph, batch).is_ok() {
                return Case {
                    batch: or_short(&mut draws, &graph, &strategy, batch),
                    graph,
                    strategy,
                    seed,
                };
            }
        }
    }
}

impl Sketch {
    fn push(&mut self, kind: &str, op: Op) {
        let name = self.name(kind);
        let node = self.builder.node(&name, op, &[self.head], &[]);
        self.head = node.expect("the operation fits");
        self.trunk.push(self.head);
    }

    fn each_position(&mut self, filters: usize) {
        let op = Op::Convolution(Convolution {
            filters,
            window: [Window::ONE; 3],
            periodic: false,
            groups: 1,
            bias: true,
        });
        self.push("project", op);
    }

    /// Positions with rows of their own, one after the other behind a class token in one of three.
    fn tokens(&mut self, draws: &mut Draws) {
        self.each_position(draws.pick(&[2, 4, 6]));
        let positions = |sketch: &Self| -> usize {
            let shape = sketch.builder.shape(sketch.head);
            shape.extent.iter().product()
        };
        if draws.one_in(3) {
            let rows = 1;
            let extent = [1, 1, positions(self)];
            self.push("sequence", Op::Reshape { extent });
            let pad = Resample::Pad {
                sides: [(0, 0), (0, 0), (rows, 0)],
                mode: PadMode::Zero,
            };
            self.push("pad", Op::Resample(pad));
            self.push("class", Op::PositionEmbedding { rows });
        }
        let all = positions(self);
        let rows = if draws.one_in(3) {
            draws.between(1, all)
        } else {
            all
        };
        self.push("embed", Op::PositionEmbedding { rows });
    }

    /// What attention to all positions adds; then a reshape in one of four.
    fn attend(&mut self, draws: &mut Draws) {
        let start = self.head;
        let channels = self.builder.shape(start).channels;
        if draws.one_in(2) {
            let name = self.name("norm");
            let norm = if draws.one_in(2) {
                self.builder.rms_norm(&name, start, 0.1)
            } else {
                self.builder.layer_norm(&name, start, 0.1)
            };
            self.head = norm.expect("a norm fits anywhere");
            self.trunk.push(self.head);
        }
        let read = self.head;
        let inputs = [0; 3].map(|_| {
            self.head = read;
            if !draws.one_in(4) {
                self.each_position(channels);
            }
            self.head
        });
        let heads = draws.pick(&[1, 2, channels]);
        let heads = if channels.is_multiple_of(heads) {
            heads
        } else {
            1
        };
        let causal = draws.one_in(4);
        let name = self.name("attention");
        let node = self.builder.attention(&name, inputs, heads, causal);
        let node = node.expect("heads divide the channels");
        let name = self.name("sum");
        let sum = self.builder.add(&name, node, start);
        self.head = sum.expect("shapes are equal");
        self.trunk.push(self.head);
        let [d, h, w] = self.builder.shape(self.head).extent;
        if draws.one_in(4) {
            let extent = draws.pick(&[[1, 1, d * h * w], [1, d, h * w], [1, w, d * h], [d, h, w]]);
            let is_volume = self.builder.spatial_rank() > 1 || extent[1] == 1;
            let extent = if is_volume { extent } else { [d, h, w] };
            self.push("reshape", Op::Reshape { extent });
        }
    }
}
