//! How stored targets become those of a network.

use partita_formats::Samples;

/// What the targets of an opened dataset stand for besides their names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meaning {
    /// Of each number, or none.
    pub(crate) ranges: Vec<[f64; 2]>,
    /// Of each number, or none.
    pub(crate) units: Vec<String>,
    /// How stored targets are read; `None` as they are.
    pub(crate) map: Option<TargetMap>,
}

/// How targets that are stored become those of a network.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TargetMap {
    /// The class of each stored one.
    Classes(Vec<i16>),
    /// Column, factor and summand of each number, and the number of columns.
    Numbers(Vec<(usize, f64, f64)>, usize),
}

impl Meaning {
    /// Of targets that are read as they are stored.
    pub(crate) fn new(ranges: Option<Vec<[f64; 2]>>, units: Option<Vec<String>>) -> Self {
        Self {
            ranges: ranges.unwrap_or_default(),
            units: units.unwrap_or_default(),
            map: None,
        }
    }

    /// Classes or numbers in the files, where the dataset is read as one of `read`.
    pub(crate) fn stored(&self, read: usize) -> usize {
        match &self.map {
            None => read,
            Some(TargetMap::Classes(classes)) => classes.len(),
            Some(TargetMap::Numbers(_, columns)) => *columns,
        }
    }

    /// The numbers of a network, from those of a file.
    pub(crate) fn numbers(&self, stored: Vec<f32>) -> Vec<f32> {
        let Some(TargetMap::Numbers(numbers, _)) = &self.map else {
            return stored;
        };
        let read = |&(column, factor, summand): &(usize, f64, f64)| {
            (f64::from(stored[column]) * factor + summand) as f32
        };
        numbers.iter().map(read).collect()
    }

    /// Brings classes of a file to those of a network. What is no class stays.
    pub(crate) fn classes(&self, labels: &mut Samples) {
        let Some(TargetMap::Classes(classes)) = &self.map else {
            return;
        };
        let Samples::I16(labels) = labels else {
            panic!("class indices are read as int16");
        };
        for label in labels {
            if let Some(&class) = usize::try_from(*label).ok().and_then(|at| classes.get(at)) {
                *label = class;
            }
        }
    }
}
