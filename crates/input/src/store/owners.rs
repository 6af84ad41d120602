//! Which rank keeps which part of a dataset.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use partita_data::{Dataset, Split};
use partita_formats::DType;
use partita_formats::slab::{self, Region4};
use partita_program::{Item, Load, Program};
use partita_space::{Bytes, Interval, Rank};

use crate::augment::Sampling;
use crate::plain_files::Wanted;

/// What a stored unit takes besides its elements: its entry in a hash table, counters and allocations.
pub(crate) const OVERHEAD: u64 = 160;

/// Identifies a unit of the store: a region of a volume, of its class indices, or its target vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct UnitKey {
    pub(crate) item: Item,
    pub(crate) split: Split,
    /// Number of the volume in its split.
    pub(crate) volume: usize,
    /// Index of the region among those in which volumes are stored.
    pub(crate) region: usize,
}

/// The owner of each unit, computed alike by every rank from programs and sample order.
///
/// A unit belongs to one of the ranks that read its region in the first epoch: those whose part of the
/// mini-batch has the sample, or all that read the region if the first epoch leaves the sample out.
pub(crate) struct Owners {
    dataset: Dataset,
    items: [ItemOwners; 2],
    /// Number of the first volume of each split.
    first: [usize; 3],
    /// Where the first epoch has each volume; `None` for one that it leaves out.
    places: Vec<Option<Place>>,
    /// Regions of each item that are read of each split.
    read: [[Vec<usize>; 2]; 3],
    ranks: usize,
}

/// A position in the mini-batch of a program.
#[derive(Clone, Copy)]
struct Place {
    program: u16,
    position: u32,
}

/// The owners of one item.
struct ItemOwners {
    /// Regions of the units; one that stands for all of a sample, if ranks read other regions in each epoch.
    regions: Vec<Region4>,
    numbers: HashMap<Region4, usize>,
    /// Whether a unit is all of a sample.
    is_whole: bool,
    dtype: DType,
    /// Ranks that read a region, by region.
    readers: Vec<Vec<Rank>>,
    /// Ranks that read a region of a sample, by program, region and position in the mini-batch.
    at: Vec<Vec<Vec<Vec<Rank>>>>,
}

impl Owners {
    /// `steps` are the steps of the first epoch: the index of the program and the samples of each.
    pub(crate) fn new(
        dataset: &Dataset,
        sampling: &Sampling,
        programs: &[&Program],
        steps: impl IntoIterator<Item = (usize, Vec<usize>)>,
    ) -> Self {
        let volumes = Split::ALL.map(|split| dataset.samples(split));
        let first = [0, volumes[0], volumes[0] + volumes[1]];
        let items = [
            samples_of(dataset, sampling, programs),
            targets_of(dataset, sampling, programs),
        ];
        let mut places = vec![None; volumes.iter().sum()];
        let mut used = [const { BTreeSet::new() }; 3];
        for (program, samples) in steps {
            for (position, sample) in samples.into_iter().enumerate() {
                let (split, volume) = sampling.volume_of(sample);
                used[split as usize].insert(program);
                let place = Place {
                    program: program as u16,
                    position: position as u32,
                };
                places[first[split as usize] + volume].get_or_insert(place);
            }
        }
        let read = used.map(|programs| [&items[0], &items[1]].map(|one| one.read_by(&programs)));
        Self {
            dataset: dataset.clone(),
            items,
            read,
            first,
            places,
            ranks: programs.first().map_or(1, |program| program.mesh.ranks()),
        }
    }

    fn item(&self, item: Item) -> &ItemOwners {
        &self.items[item as usize]
    }

    /// Number of ranks.
    pub(crate) fn ranks(&self) -> usize {
        self.ranks
    }

    /// Type of the elements of an item.
    pub(crate) fn dtype(&self, item: Item) -> DType {
        self.item(item).dtype
    }

    /// The region of a unit.
    pub(crate) fn region(&self, unit: UnitKey) -> Region4 {
        let UnitKey {
            item,
            split,
            volume,
            region,
        } = unit;
        let owners = self.item(item);
        let labels = || self.dataset.labels_of(split, volume);
        match (owners.is_whole, item) {
            (true, Item::Sample) => self.dataset.shape_of(split, volume).map(|extent| 0..extent),
            (true, Item::Target) if let Some([d, h, w]) = labels() => [0..1, 0..d, 0..h, 0..w],
            (_, Item::Sample | Item::Target | Item::Features) => owners.regions[region].clone(),
        }
    }

    /// The unit that has a part. Panics on a region that no program reads.
    pub(crate) fn unit(&self, wanted: &Wanted) -> UnitKey {
        let owners = self.item(wanted.item);
        let region = if owners.is_whole {
            0
        } else {
            owners.numbers[&wanted.region]
        };
        UnitKey {
            item: wanted.item,
            split: wanted.split,
            volume: wanted.volume,
            region,
        }
    }

    /// The rank that keeps a unit.
    pub(crate) fn owner(&self, unit: UnitKey) -> Rank {
        let owners = self.item(unit.item);
        let index = self.first[unit.split as usize] + unit.volume;
        let there = self.places.get(index).copied().flatten().map(|place| {
            let regions = &owners.at[usize::from(place.program)];
            regions[unit.region][place.position as usize].as_slice()
        });
        let ranks = match there {
            Some(ranks) if !ranks.is_empty() => ranks,
            Some(_) | None => &owners.readers[unit.region],
        };
        ranks[unit.volume % ranks.len()]
    }

    /// All units that are read, in the order of the files.
    pub(crate) fn units(&self) -> impl Iterator<Item = UnitKey> + '_ {
        let end = |split: usize| self.first.get(split + 1).copied();
        let volumes = move |split: Split| {
            let end = end(split as usize).unwrap_or(self.places.len());
            (0..end - self.first[split as usize]).map(move |volume| (split, volume))
        };
        let of_volume = move |(split, volume): (Split, usize)| {
            let of_item = move |item: Item| {
                let regions = self.read[split as usize][item as usize].iter();
                regions.map(move |&region| UnitKey {
                    item,
                    split,
                    volume,
                    region,
                })
            };
            [Item::Sample, Item::Target].into_iter().flat_map(of_item)
        };
        Split::ALL.into_iter().flat_map(volumes).flat_map(of_volume)
    }

    /// Memory of the units of each rank when all are there.
    pub(crate) fn held(&self) -> Vec<Bytes> {
        let mut held = vec![Bytes(0); self.ranks];
        for unit in self.units() {
            held[self.owner(unit)] += Bytes(self.bytes(unit) + OVERHEAD);
        }
        held
    }

    /// Bytes of the elements of a unit.
    pub(crate) fn bytes(&self, unit: UnitKey) -> u64 {
        let elements = slab::elements(&self.region(unit));
        (elements * self.dtype(unit.item).size_bytes()) as u64
    }
}

fn samples_of(dataset: &Dataset, sampling: &Sampling, programs: &[&Program]) -> ItemOwners {
    let whole = sampling
        .reads_other_regions()
        .then(|| dataset.shape().map(|extent| 0..extent));
    ItemOwners::new(programs, Item::Sample, dataset.dtype(), whole)
}

fn targets_of(dataset: &Dataset, sampling: &Sampling, programs: &[&Program]) -> ItemOwners {
    let Some(labels) = dataset.labels() else {
        // A target vector is one unit, however ranks split it.
        let row = [0..1, 0..1, 0..1, 0..dataset.targets().len()];
        let kind = DType::Float32;
        return ItemOwners::new(programs, Item::Target, kind, Some(row));
    };
    let [d, h, w] = labels;
    let moves = sampling.reads_other_regions() && sampling.labels_voxels();
    let whole = moves.then_some([0..1, 0..d, 0..h, 0..w]);
    ItemOwners::new(programs, Item::Target, DType::Int16, whole)
}

impl ItemOwners {
    /// `whole` is the only region, where there is one.
    fn new(programs: &[&Program], item: Item, dtype: DType, whole: Option<Region4>) -> Self {
        let mut owners = Self {
            regions: Vec::new(),
            numbers: HashMap::new(),
            is_whole: whole.is_some(),
            dtype,
            readers: Vec::new(),
            at: Vec::new(),
        };
        let mut reads = Vec::new();
        for (index, program) in programs.iter().enumerate() {
            for rank in 0..program.mesh.ranks() {
                for load in program.body(rank).loads().filter(|load| load.item == item) {
                    let (positions, region) = part(program, rank, load);
                    let region = whole.clone().unwrap_or(region);
                    if !positions.is_empty() && slab::elements(&region) > 0 {
                        let number = owners.number(region);
                        reads.push((index, rank, number, positions));
                    }
                }
            }
        }
        let regions = owners.regions.len();
        owners.readers = vec![Vec::new(); regions];
        let of_program = |program: &&Program| vec![vec![Vec::new(); program.batch]; regions];
        owners.at = programs.iter().map(of_program).collect();
        for (program, rank, region, positions) in reads {
            let at = &mut owners.at[program][region];
            let lists = at[positions].iter_mut();
            for list in lists.chain([&mut owners.readers[region]]) {
                if !list.contains(&rank) {
                    list.push(rank);
                }
            }
        }
        owners
    }

    /// The regions that some programs read.
    fn read_by(&self, programs: &BTreeSet<usize>) -> Vec<usize> {
        let reads = |&region: &usize| {
            let mut lists = programs.iter().flat_map(|&one| &self.at[one][region]);
            lists.any(|ranks| !ranks.is_empty())
        };
        (0..self.regions.len()).filter(reads).collect()
    }

    fn number(&mut self, region: Region4) -> usize {
        let next = self.regions.len();
        let number = *self.numbers.entry(region.clone()).or_insert(next);
        if number == next {
            self.regions.push(region);
        }
        number
    }
}

/// Positions in the mini-batch and region (C, D, H, W) that a rank reads.
fn part(program: &Program, rank: Rank, load: &Load) -> (Range<usize>, Region4) {
    let mesh = &program.mesh;
    let owned = load.distribution.owned(mesh, &mesh.coord(rank));
    let [n, d, h, w, c] = owned.0.map(range);
    (n, [c, d, h, w])
}

/// The indices of an owned interval.
pub(crate) fn range(interval: Interval) -> Range<usize> {
    let start = usize::try_from(interval.start).expect("an owned region starts inside its tensor");
    start..start + interval.len()
}
