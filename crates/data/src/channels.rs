//! Names of the channels of a dataset, and the order in which they are read.

use partita_formats::Samples;
use partita_formats::slab::Region4;

/// Key of the names in the part of an index that says what was converted.
pub(crate) const CHANNELS: &str = "channels";

/// The channels of an opened dataset.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    /// Their names as they are read; empty where they are unknown.
    pub(crate) names: Vec<String>,
    /// The stored one of each; `None` where they are read as they are stored.
    pub(crate) order: Option<Vec<usize>>,
}

impl Channels {
    /// As they are stored, by the table `spec` of an index.
    pub(crate) fn stored(spec: &toml::Table, count: usize) -> Self {
        let list = spec.get(CHANNELS).and_then(toml::Value::as_array);
        let texts = list.map(|list| {
            let texts = list.iter().map(|name| name.as_str().map(str::to_owned));
            texts.collect::<Option<Vec<_>>>()
        });
        let names = texts.flatten().filter(|names| names.len() == count);
        Self {
            names: names.unwrap_or_default(),
            order: None,
        }
    }

    /// The same channels, each as the one of this number.
    pub(crate) fn ordered(&self, places: &[usize]) -> Self {
        let stored = |&place: &usize| self.order.as_ref().map_or(place, |order| order[place]);
        Self {
            names: places.iter().map(|&at| self.names[at].clone()).collect(),
            order: Some(places.iter().map(stored).collect()),
        }
    }

    /// The stored region that has a region as it is read.
    pub(crate) fn stored_region(&self, region: &Region4) -> Region4 {
        let mut stored = region.clone();
        if let Some(order) = &self.order {
            let channels = &order[region[0].clone()];
            let first = channels.iter().min().copied().unwrap_or(0);
            stored[0] = first..channels.iter().max().map_or(first, |last| last + 1);
        }
        stored
    }

    /// Brings the values of the [stored region](Self::stored_region) to the order in which a region is read.
    pub(crate) fn arrange(&self, region: &Region4, samples: &mut Samples) {
        let Some(order) = &self.order else {
            return;
        };
        let first = self.stored_region(region)[0].start;
        let channels = order[region[0].clone()].iter().map(|at| at - first);
        let each = region[1..].iter().map(ExactSizeIterator::len).product();
        match samples {
            Samples::I16(values) => *values = picked(values, channels, each),
            Samples::F32(values) => *values = picked(values, channels, each),
        }
    }
}

fn picked<T: Copy>(values: &[T], channels: impl Iterator<Item = usize>, each: usize) -> Vec<T> {
    channels
        .flat_map(|at| &values[at * each..(at + 1) * each])
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_channels_in_another_order_are_read_from_one_region() {
        let spec = toml::from_str("channels = [\"a\", \"b\", \"c\"]").unwrap();
        let channels = Channels::stored(&spec, 3).ordered(&[2, 0, 1]);
        assert_eq!(channels.names, ["c", "a", "b"]);
        let region = [0..2, 0..1, 0..1, 4..6];
        assert_eq!(channels.stored_region(&region), [0..3, 0..1, 0..1, 4..6]);
        let mut samples = Samples::I16(vec![1, 2, 3, 4, 5, 6]);
        channels.arrange(&region, &mut samples);
        assert_eq!(samples, Samples::I16(vec![5, 6, 1, 2]));
        let region = [1..3, 0..1, 0..1, 4..6];
        assert_eq!(channels.stored_region(&region)[0], 0..2);
        // A second order is of what the first one reads.
        assert_eq!(channels.ordered(&[1, 0, 2]).order, Some(vec![0, 2, 1]));
        assert!(Channels::stored(&spec, 2).names.is_empty());
    }
}
