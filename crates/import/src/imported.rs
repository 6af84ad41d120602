//! What is asked of a network, and what it became.

use partita_graph::Graph;

/// What of a network is wanted.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The loss; none for one that follows from the output.
    pub loss: Option<partita_graph::Loss>,
    /// The output that is trained, from 0; none if there is only one.
    pub output: Option<usize>,
}

/// A network as a graph.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The graph.
    pub graph: Graph,
    /// What became what, in order.
    pub layers: Vec<Layer>,
    /// Where the loss is from.
    pub loss: LossChoice,
    /// The parameters, by their layers.
    pub stored: Vec<Stored>,
    /// Those that training leaves as they are, for they have `requires_grad=False` or are buffers.
    pub frozen: Vec<String>,
}

/// What an operator of the file became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The operator.
    pub operator: String,
    /// The module that calls it; empty for the network itself.
    pub module: String,
    /// The layer of the graph; none where nothing is computed, as in a view.
    pub layer: Option<String>,
}

/// Where the loss of an imported network is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossChoice {
    /// From the caller.
    Asked,
    /// It follows from the output: cross-entropy for two or more channels, else the mean squared error.
    Assumed,
}

/// A parameter of the graph in the state dict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name after its layer, in PyTorch's words: `conv1.weight`.
    pub name: String,
    /// Its name in the state dict.
    pub original: String,
    /// Its extents in PyTorch's order, as its layer has them.
    pub shape: Vec<usize>,
}
