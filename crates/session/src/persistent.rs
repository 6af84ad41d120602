//! Buffers that persist over the programs of a training: parameters, running statistics, moments and averages.

use crate::session::{Session, persists_over_programs};
use crate::shards::{for_shard_rows, model_name, persistent_name, put_shard};
use half::{bf16, f16};
use partita_program::{Body, Buffer, BufferId, Dtype, Program, Role, TensorRegion};
use partita_run::{Arena, Element, Memory, PackedTensor, RunError};
use partita_space::help::full_text;
use partita_space::{AXES, AxisSet, Coord, Mesh, Rank, Region};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::ops::{AddAssign, Range};

/// Why values of a persistent buffer cannot be had.
pub type ValuesError = Box<dyn Error + Send + Sync>;

/// Initial values of a range of elements of the tensor that a persistent buffer holds a shard of, in memory
/// order; `None` for zeros.
pub type InitialValues<'i> =
    dyn Fn(&Buffer, Range<usize>) -> Result<Option<Vec<f64>>, ValuesError> + 'i;

/// Initial values generated at a time, in elements: few, because they take memory in addition to the arena.
const CHUNK: usize = 1 << 13;

/// A trained parameter, its average where there is one, or a running statistic, and the ranks that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PersistentTensor {
    /// Name of the tensor in the model.
    pub name: String,
    /// Parameter, average or state.
    pub role: Role,
    /// Element type in the run.
    pub dtype: Dtype,
    /// Global extents.
    pub dims: [usize; 5],
    /// One rank with the whole tensor, or the ranks with different shards, and the buffer of each.
    pub holders: Vec<(Rank, BufferId)>,
}

/// A shard of a persistent buffer that a rank is the first to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedShard {
    /// Name of the tensor.
    pub name: String,
    /// Parameter, state, optimizer or average.
    pub role: Role,
    /// Element type in the run.
    pub dtype: Dtype,
    /// Global extents of the tensor.
    pub shape: [usize; 5],
    /// Global indices of the shard.
    pub region: Region,
    pub(crate) id: BufferId,
}

impl OwnedShard {
    /// Name of its tensor in the model: of the average of a parameter that of the parameter.
    pub fn name_in_model(&self) -> &str {
        model_name(&self.name, self.role)
    }
}

impl Session<'_> {
    /// The shards of parameters, states, optimizer buffers and averages of which a rank is the first holder: over all ranks, each
    /// element once.
    pub fn owned_shards(&self, rank: Rank) -> Vec<OwnedShard> {
        let program = self.main_program();
        let coord = program.mesh.coord(rank);
        let owned = persistent(program.body(rank)).filter(|(_, buffer)| {
            buffer.role != Role::Constant && is_first(buffer, &program.mesh, coord)
        });
        let shard = |(id, buffer): (BufferId, &Buffer)| {
            let (shape, region) = match &buffer.tensor {
                None => (buffer.dims, Region::all(buffer.dims)),
                Some(TensorRegion { distribution, .. }) => (
                    distribution.shape,
                    distribution.owned(&program.mesh, &coord),
                ),
            };
            OwnedShard {
                name: buffer.name.clone(),
                role: buffer.role,
                dtype: buffer.dtype,
                shape,
                region,
                id,
            }
        };
        owned.map(shard).collect()
    }

    /// Those of [`owned_shards`](Self::owned_shards) that evaluations read: of a parameter with an average that average.
    pub fn evaluated_shards(&self, rank: Rank) -> Vec<OwnedShard> {
        let body = self.main_program().body(rank);
        let read: BTreeSet<BufferId> = evaluated(body).map(|(id, _)| id).collect();
        let mut shards = self.owned_shards(rank);
        shards.retain(|shard| read.contains(&shard.id));
        shards
    }

    /// The tensors that are saved after the run, as evaluations read them: widest dtype first, then by name; none where
    /// nothing is trained.
    pub fn persistent_tensors(&self) -> Vec<PersistentTensor> {
        if !self.trains() {
            return Vec::new();
        }
        let program = self.main_program();
        let mut all: BTreeMap<&str, PersistentTensor> = BTreeMap::new();
        for rank in 0..program.mesh.ranks() {
            let coord = program.mesh.coord(rank);
            for (id, buffer) in evaluated(program.body(rank)) {
                if buffer.role == Role::Constant || !is_first(buffer, &program.mesh, coord) {
                    continue;
                }
                let name = model_name(&buffer.name, buffer.role);
                let one = all.entry(name).or_insert_with(|| PersistentTensor {
                    name: name.to_owned(),
                    role: buffer.role,
                    dtype: buffer.dtype,
                    dims: buffer
                        .tensor
                        .map_or(buffer.dims, |tensor| tensor.distribution.shape),
                    holders: Vec::new(),
                });
                one.holders.push((rank, id));
            }
        }
        let mut all: Vec<PersistentTensor> = all.into_values().collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.dtype.size()));
        all
    }

    /// The shard of a holder, from its arena after the run.
    pub fn shard(&self, (rank, id): (Rank, BufferId), arena: &mut Arena) -> PackedTensor {
        let body = self.main_program().body(rank);
        let buffer = body.buffer(id);
        let mut shard = PackedTensor::with_capacity(buffer.dtype, buffer.dims.iter().product());
        shard.pack(&arena.memory(body), &buffer.view(id));
        shard
    }

    /// The whole tensor from the shards of its holders, in their order.
    pub fn assemble(
        &self,
        tensor: &PersistentTensor,
        shards: impl Iterator<Item = PackedTensor>,
    ) -> PackedTensor {
        let program = self.main_program();
        let mut shards = tensor.holders.iter().zip(shards).peekable();
        let elements = tensor.dims.iter().product();
        if let Some((_, all)) = shards.next_if(|(_, shard)| shard.len() == elements) {
            return all;
        }
        let mut whole = PackedTensor::with_capacity(tensor.dtype, elements);
        whole.resize(elements);
        for (&(rank, id), shard) in shards {
            let (mesh, coord) = (&program.mesh, program.mesh.coord(rank));
            let region = program.body(rank).buffer(id).tensor;
            let region = region.expect("a sharded buffer holds a region of a tensor");
            match (&mut whole, &shard) {
                (PackedTensor::F32(whole), PackedTensor::F32(shard)) => {
                    put_shard(whole, shard, &region, mesh, &coord);
                }
                (PackedTensor::F64(whole), PackedTensor::F64(shard)) => {
                    put_shard(whole, shard, &region, mesh, &coord);
                }
                (PackedTensor::I16(whole), PackedTensor::I16(shard)) => {
                    put_shard(whole, shard, &region, mesh, &coord);
                }
                (whole, shard) => {
                    let (whole, shard) = (whole.dtype(), shard.dtype());
                    panic!("a shard in {shard:?} of `{}` in {whole:?}", tensor.name);
                }
            }
        }
        whole
    }
}

pub(crate) fn persistent(body: &Body) -> impl Iterator<Item = (BufferId, &Buffer)> {
    let ids = (0..).map(BufferId);
    ids.zip(&body.buffers)
        .filter(|(_, buffer)| persists_over_programs(buffer.role))
}

/// The buffers of the model that an evaluation reads: of a parameter with an average that average.
pub(crate) fn evaluated(body: &Body) -> impl Iterator<Item = (BufferId, &Buffer)> {
    let averages = persistent(body).filter(|(_, buffer)| buffer.role == Role::Average);
    let averaged: BTreeSet<&str> = averages
        .map(|(_, buffer)| model_name(&buffer.name, buffer.role))
        .collect();
    persistent(body).filter(move |(_, buffer)| {
        let is_replaced =
            buffer.role == Role::Parameter && averaged.contains(persistent_name(&buffer.name));
        buffer.role.is_of_model() && !is_replaced
    })
}

/// A persistent buffer with values that are infinite or NaN.
pub(crate) struct NotFinite<'b> {
    pub id: BufferId,
    pub buffer: &'b Buffer,
    /// The first such value.
    pub value: f64,
    pub count: usize,
}

/// The first persistent buffer of a rank that is not finite: running statistics, then parameters, then
/// optimizer states, then averages, because infinities spread in that order.
pub(crate) fn first_not_finite<'b>(body: &'b Body, memory: &Memory<'_>) -> Option<NotFinite<'b>> {
    let found = |role: Role| {
        let buffers = persistent(body).filter(move |(_, buffer)| buffer.role == role);
        buffers.filter_map(|(id, buffer)| {
            let (count, value) = match buffer.dtype {
                Dtype::F32 => not_finite::<f32>(memory, (id, buffer), f64::from),
                Dtype::F64 => not_finite::<f64>(memory, (id, buffer), |v| v),
                Dtype::Bf16 => not_finite::<bf16>(memory, (id, buffer), f64::from),
                Dtype::F16 => not_finite::<f16>(memory, (id, buffer), f64::from),
                Dtype::I16 => (0, None),
            };
            let value = value?;
            Some(NotFinite {
                id,
                buffer,
                value,
                count,
            })
        })
    };
    let roles = [Role::State, Role::Parameter, Role::Optimizer, Role::Average];
    roles.into_iter().find_map(|role| found(role).next())
}

/// Number of values that are not finite, and the first of them.
fn not_finite<T: Element>(
    memory: &Memory<'_>,
    (id, buffer): (BufferId, &Buffer),
    wide: impl Fn(T) -> f64,
) -> (usize, Option<f64>) {
    let (mut count, mut first) = (0, None);
    for_chunks::<T>(memory, (id, buffer), |_, values| {
        let is_bad = |value: &f64| !value.is_finite();
        let wide = || values.iter().map(|&value| wide(value));
        // A branch-free sum that is almost always 0.
        let bad: usize = wide().map(|value| usize::from(is_bad(&value))).sum();
        if bad > 0 {
            count += bad;
            first = first.or(wide().find(is_bad));
        }
    });
    (count, first)
}

/// Visits the elements of a buffer in chunks, each with the number of its first element: there is never a second copy of
/// the whole.
fn for_chunks<T: Element>(
    memory: &Memory<'_>,
    (id, buffer): (BufferId, &Buffer),
    mut visit: impl FnMut(usize, &[T]),
) {
    let elements: usize = buffer.dims.iter().product();
    let mut chunk = vec![T::default(); elements.min(CHUNK)];
    for start in (0..elements).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(elements - start)];
        memory.pack_range(id, start, part);
        visit(start, part);
    }
}

/// Whether the rank at `coord` is the first of those that hold the same shard.
fn is_first(buffer: &Buffer, mesh: &Mesh, coord: Coord) -> bool {
    let (shards, local) = match &buffer.tensor {
        None => (AxisSet::NONE, Some(coord)),
        Some(TensorRegion { distribution, .. }) => (
            distribution.split_axes(),
            distribution.local_coord(mesh, &coord),
        ),
    };
    let mut same = AXES.into_iter().filter(|&axis| !shards.has(axis));
    let is_first = local.is_some_and(|local| same.all(|axis| local[axis.index()] == 0));
    is_first && persistent_name(&buffer.name) == buffer.name
}

/// Copies a shard from the arena as little-endian bytes.
pub(crate) fn write_shard(body: &Body, arena: &mut Arena, shard: &OwnedShard, bytes: &mut [u8]) {
    let memory = arena.memory(body);
    match shard.dtype {
        Dtype::F32 => copy::<f32, 4>(&memory, shard.id, bytes, f32::to_le_bytes),
        Dtype::F64 => copy::<f64, 8>(&memory, shard.id, bytes, f64::to_le_bytes),
        Dtype::Bf16 | Dtype::F16 | Dtype::I16 => {
            panic!("parameters like `{}` are kept in f32 or f64", shard.name)
        }
    }
}

fn copy<T: Element, const N: usize>(
    memory: &Memory<'_>,
    id: BufferId,
    bytes: &mut [u8],
    to_bytes: fn(T) -> [u8; N],
) {
    let buffer = memory.body().buffer(id);
    let (words, rest) = bytes.as_chunks_mut::<N>();
    assert!(
        rest.is_empty() && words.len() == buffer.dims.iter().product::<usize>(),
        "room for a shard of {:?} elements",
        buffer.dims
    );
    for_chunks::<T>(memory, (id, buffer), |first, values| {
        for (word, &value) in words[first..].iter_mut().zip(values) {
            *word = to_bytes(value);
        }
    });
}

/// Sets persistent buffers to the rank's shards of the initial values.
///
/// Errors: `Initial`.
pub(crate) fn set_initial(
    program: &Program,
    rank: Rank,
    arena: &mut Arena,
    initial: &InitialValues<'_>,
) -> Result<(), RunError> {
    let (body, mesh, coord) = (program.body(rank), &program.mesh, program.mesh.coord(rank));
    let memory = arena.memory(body);
    for (id, buffer) in persistent(body) {
        let rows = |visit: &mut dyn FnMut(usize, usize)| match &buffer.tensor {
            Some(tensor) => for_shard_rows(tensor, mesh, &coord, visit),
            None => visit(0, buffer.dims.iter().product()),
        };
        let filled = match buffer.dtype {
            Dtype::F32 => fill::<f32>(&memory, (id, buffer), initial, |v| v as f32, rows),
            Dtype::F64 => fill::<f64>(&memory, (id, buffer), initial, |v| v, rows),
            Dtype::Bf16 | Dtype::F16 | Dtype::I16 => {
                panic!("parameters like `{}` are kept in f32 or f64", buffer.name)
            }
        };
        filled.map_err(|error| RunError::Initial {
            rank,
            tensor: buffer.name.clone(),
            reason: full_text(&*error),
        })?;
    }
    Ok(())
}

/// Fills a buffer in chunks, so that there is never a second copy of the whole.
fn fill<T: Element + AddAssign>(
    memory: &Memory<'_>,
    (id, buffer): (BufferId, &Buffer),
    initial: &InitialValues<'_>,
    narrow: impl Fn(f64) -> T,
    rows: impl FnOnce(&mut dyn FnMut(usize, usize)),
) -> Result<(), ValuesError> {
    let (mut failure, mut filled) = (None, 0);
    let mut chunk = Vec::new();
    rows(&mut |first, length| {
        for start in (first..first + length).step_by(CHUNK) {
            let elements = start..(first + length).min(start + CHUNK);
            let (at, count) = (filled, elements.len());
            filled += count;
            if failure.is_some() {
                continue;
            }
            chunk.clear();
            match initial(buffer, elements) {
                Ok(Some(values)) => chunk.extend(values.into_iter().map(&narrow)),
                Ok(None) => chunk.resize(count, T::default()),
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            }
            assert_eq!(chunk.len(), count, "initial values of {}", buffer.name);
            memory.unpack_range(id, at, &chunk);
        }
    });
    let elements: usize = buffer.dims.iter().product();
    assert_eq!(filled, elements, "initial values of all of {}", buffer.name);
    failure.map_or(Ok(()), Err)
}
