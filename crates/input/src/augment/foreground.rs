//! Where classes other than the background are, so that crops can be centered there.

use std::collections::BTreeMap;
use std::collections::BinaryHeap;
use std::fmt;

use partita_data::{Dataset, Split};
use partita_formats::slab::position;
use partita_formats::{DType, DataError, Samples};
use partita_program::random::Draws;
use partita_space::on_threads;
use partita_space::random::absorb;
use serde::{Deserialize, Serialize};

use super::draws::{Operation, below};

/// Most positions of a class in a volume; of more, some are drawn.
const POSITIONS_MAX: usize = 4096;
/// Positions of all volumes, from which on fewer are kept of each, and the least of these.
const ALL_POSITIONS: usize = 1 << 22;
const POSITIONS_MIN: usize = 16;
/// Class indices that are read at once.
const BLOCK_ELEMENTS: usize = 1 << 22;

/// Positions of each class but 0 and the ignored one in the volumes of the training split.
///
/// Of a class with many positions some are kept, which are a uniform draw and depend on the dataset alone: so all
/// processes that look at the same files have the same. They take at most about 32 MiB.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreground {
    /// Of each volume, for each class that it has, positions in the order (D, H, W).
    volumes: Vec<Vec<Vec<u64>>>,
}

impl fmt::Debug for Foreground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let positions = self.volumes.iter().flatten().flatten();
        let digest = positions.fold(0, |digest, &position| absorb(digest, position));
        write!(
            f,
            "Foreground({} volumes, {digest:016x})",
            self.volumes.len()
        )
    }
}

/// Positions of a class with the least random keys.
#[derive(Default)]
struct Kept(BinaryHeap<(u64, u64)>);

impl Foreground {
    /// Reads the class indices of the training split.
    ///
    /// Errors: those of the files; a dataset without a class at each position.
    pub fn find(dataset: &Dataset, threads: usize) -> Result<Self, DataError> {
        let [_, volume @ ..] = dataset.shape();
        if dataset.labels() != Some(volume) {
            return Err(DataError::Augmentation {
                path: dataset.path().to_path_buf(),
                key: "augmentation.foreground",
                got: "given".to_owned(),
                reason: "the dataset has no class at each position".to_owned(),
                expected: "nothing".to_owned(),
            });
        }
        let volumes = dataset.samples(Split::Train);
        let lists = volumes * dataset.targets().len();
        let most = (ALL_POSITIONS / lists.max(1)).clamp(POSITIONS_MIN, POSITIONS_MAX);
        // The first error in the order of volumes, whichever thread found it.
        let found = on_threads(threads, volumes, |volume| of_volume(dataset, volume, most));
        Ok(Self {
            volumes: found.into_iter().collect::<Result<_, _>>()?,
        })
    }

    /// Number of volumes without foreground.
    pub fn without(&self) -> usize {
        self.volumes
            .iter()
            .filter(|classes| classes.is_empty())
            .count()
    }

    /// The number of a position in a volume: of a class drawn uniformly among those of the volume, uniformly among its
    /// positions. None without foreground.
    ///
    /// Source: Isensee et al., "nnU-Net", Nature Methods 18 (2021), supplement, "oversampling of foreground".
    pub(super) fn draw(&self, volume: usize, draws: &Draws) -> Option<u64> {
        let classes = self.volumes.get(volume)?;
        if classes.is_empty() {
            return None;
        }
        let positions = &classes[below(draws.unit(1), classes.len())];
        Some(positions[below(draws.unit(2), positions.len())])
    }
}

/// Positions of the classes that a volume has.
fn of_volume(dataset: &Dataset, volume: usize, most: usize) -> Result<Vec<Vec<u64>>, DataError> {
    let [d, h, w] = dataset.labels_of(Split::Train, volume).unwrap_or([1; 3]);
    let draws = Draws::new(0, 0, volume as u64, Operation::Foreground as u32);
    let mut reader = dataset.reader(Split::Train);
    let mut labels = Samples::new(DType::Int16);
    let mut kept: BTreeMap<i16, Kept> = BTreeMap::new();
    let thickness = (BLOCK_ELEMENTS / (h * w)).max(1);
    for start in (0..d).step_by(thickness) {
        let region = [0..1, start..d.min(start + thickness), 0..h, 0..w];
        reader.read_labels(volume, region.clone(), &mut labels)?;
        let Samples::I16(values) = &labels else {
            continue;
        };
        for (at, &class) in values.iter().enumerate() {
            if class == 0 || dataset.ignored() == Some(class.into()) {
                continue;
            }
            let [_, z, y, x] = position(&region, at);
            let place = ((z * h + y) * w + x) as u64;
            let key = (draws.whole(place), place);
            let Kept(heap) = kept.entry(class).or_default();
            if heap.len() < most {
                heap.push(key);
            } else if let Some(mut largest) = heap.peek_mut()
                && key < *largest
            {
                *largest = key;
            }
        }
    }
    let positions = |Kept(heap): Kept| {
        let mut positions: Vec<u64> = heap.into_iter().map(|(_, place)| place).collect();
        positions.sort_unstable();
        positions
    };
    Ok(kept.into_values().map(positions).collect())
}
