//! Names of nodes and parameters in a graph, and shapes of activations.

use std::fmt;

/// Index of a node; the tensor it computes has the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

impl From<usize> for NodeId {
    fn from(index: usize) -> Self {
        Self(index)
    }
}

impl From<NodeId> for usize {
    fn from(id: NodeId) -> Self {
        id.0
    }
}

/// Index of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParameterId(pub usize);

/// Shape of one sample of an activation; missing spatial dims have extent 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// D, H, W.
    pub extent: [usize; 3],
    /// C.
    pub channels: usize,
}

impl Shape {
    /// Elements of one sample.
    pub fn volume(&self) -> usize {
        self.extent.iter().product::<usize>() * self.channels
    }

    /// Shape with `samples` of them, (N, D, H, W, C).
    pub fn batched(&self, samples: usize) -> [usize; 5] {
        let [d, h, w] = self.extent;
        [samples, d, h, w, self.channels]
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [d, h, w] = self.extent;
        write!(f, "{d}x{h}x{w} with {} channels", self.channels)
    }
}
