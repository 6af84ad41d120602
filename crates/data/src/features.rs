//! Features of the samples of a dataset.

/// The features of all samples of a dataset.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Features {
    /// Their names, in the order in which they are read; empty where there are none.
    pub(crate) names: Vec<String>,
    /// The stored one of each; `None` where they are read as they are stored.
    pub(crate) order: Option<Vec<usize>>,
    /// The rows of each split, as they are stored; empty where a source has them.
    pub(crate) rows: [Vec<Vec<f32>>; 3],
}

impl Features {
    /// As they are stored.
    pub(crate) fn new(names: Vec<String>, rows: [Vec<Vec<f32>>; 3]) -> Self {
        Self {
            names,
            order: None,
            rows,
        }
    }

    /// The stored row of a sample, in the order in which it is read.
    pub(crate) fn arranged(&self, stored: &[f32]) -> Vec<f32> {
        match &self.order {
            Some(order) => order.iter().map(|&at| stored[at]).collect(),
            None => stored.to_vec(),
        }
    }
}
