//! What the source of a rank delivers, and what the ranks of a mesh get together.

use std::time::{Duration, Instant};

use partita_data::Dataset;
use partita_formats::DType;
use partita_input::{HyperslabSource, Preprocessing, Sampling};
use partita_program::{
    Body, Buffer, BufferId, Distribution, Dtype, Item, Load, Role, TaskId, Transform, When,
};
use partita_run::{Arena, Inputs, Source};
use partita_space::{Axis, AxisList, Bytes, Mesh};

pub fn inputs(seed: u64, epoch: u64, samples: &[usize]) -> Inputs {
    Inputs {
        loss_scale: None,
        skipped: 0,
        seed,
        epoch,
        samples: samples.to_vec(),
        ..Inputs::default()
    }
}

/// How the values and the targets of a batch lie over the ranks.
pub fn distributions(dataset: &Dataset, sampling: &Sampling, batch: usize) -> [Distribution; 2] {
    let [c, d, h, w] = sampling.shape();
    let space = [Axis::Data, Axis::Depth, Axis::Height, Axis::Width].map(Some);
    let split = [space[0], space[1], space[2], space[3], None].map(AxisList::from);
    let whole = [space[0], None, None, None, None].map(AxisList::from);
    let target = match sampling.labels() {
        Some([d, h, w]) => ([batch, d, h, w, 1], split),
        None => ([batch, 1, 1, 1, dataset.targets().len()], whole),
    };
    [([batch, d, h, w, c], split), target].map(|(shape, axes)| Distribution {
        shape,
        axes,
        micro: None,
        submesh: None,
    })
}

/// Element type of the values that a rank gets.
pub fn staging_dtype(dataset: &Dataset, preprocessing: &Preprocessing) -> Dtype {
    match preprocessing.dtype(dataset.dtype()) {
        DType::Int16 => Dtype::I16,
        DType::Float32 => Dtype::F32,
    }
}

/// Values and targets of a batch as all ranks of a mesh get them, put together, and the bytes that they read.
pub fn deliver(
    dataset: &Dataset,
    preprocessing: &Preprocessing,
    mesh: [usize; 4],
    inputs: &Inputs,
    when: When,
) -> [Vec<f32>; 2] {
    let [data, depth, height, width] = mesh;
    let mesh = Mesh::new([data, depth, height, width, 1, 1, 1]);
    let listed = match when {
        When::Now => &inputs.samples,
        When::Next => &inputs.next_samples,
    };
    let all = distributions(dataset, &preprocessing.sampling, listed.len());
    let mut out = all.map(|one| vec![f32::NAN; one.shape.iter().product()]);
    for rank in 0..mesh.ranks() {
        for (index, distribution) in all.into_iter().enumerate() {
            let item = [Item::Sample, Item::Target][index];
            let owned = distribution.owned(&mesh, &mesh.coord(rank));
            let [n, d, h, w, c] = owned.shape();
            let (dims, dtype) = match item {
                Item::Sample => ([n, c, d, h, w], staging_dtype(dataset, preprocessing)),
                Item::Target | Item::Features => ([n, d, h, w, c], Dtype::F32),
            };
            let values = load(
                dataset,
                preprocessing,
                (mesh, rank),
                inputs,
                |buffer| Load {
                    item,
                    when,
                    distribution,
                    target: buffer,
                },
                (dims, dtype),
            );
            // Into one array in the order of `distribution.shape`.
            let starts = owned.0.map(|side| side.start as usize);
            for (position, value) in values.into_iter().enumerate() {
                let mut rest = position;
                let mut at = [0; 5];
                for dim in (0..5).rev() {
                    at[dim] = rest % dims[dim];
                    rest /= dims[dim];
                }
                let at = match item {
                    Item::Sample => [at[0], at[2], at[3], at[4], at[1]],
                    Item::Target | Item::Features => at,
                };
                let place = (0..5).fold(0, |sum, dim| {
                    sum * distribution.shape[dim] + starts[dim] + at[dim]
                });
                out[index][place] = value;
            }
        }
    }
    out
}

pub fn load(
    dataset: &Dataset,
    preprocessing: &Preprocessing,
    (mesh, rank): (Mesh, usize),
    inputs: &Inputs,
    make: impl Fn(partita_program::View) -> Load,
    (dims, dtype): ([usize; 5], Dtype),
) -> Vec<f32> {
    let buffer = Buffer {
        name: "staging".to_owned(),
        role: Role::Staging,
        dtype,
        dims,
        tensor: None,
        offset: Bytes(0),
    };
    let load = make(buffer.view(BufferId(0)));
    let body = Body {
        arena: buffer.bytes(),
        buffers: vec![buffer],
        ..Body::default()
    };
    let transform = Transform::Identity;
    let preprocessing = preprocessing.clone();
    let mut source =
        HyperslabSource::preprocessed(dataset, preprocessing, mesh, rank, transform, None).unwrap();
    let mut arena = Arena::new(body.arena);
    let memory = arena.memory(&body);
    source.start(TaskId(0), &load, inputs).unwrap();
    let (mut done, end) = (Vec::new(), Instant::now() + Duration::from_secs(20));
    while done.is_empty() {
        source.poll(&memory, &mut done).unwrap();
        std::thread::sleep(Duration::from_micros(50));
        assert!(Instant::now() < end, "nothing came");
    }
    match dtype {
        Dtype::I16 => {
            let mut values: Vec<i16> = Vec::new();
            memory.pack(&load.target, &mut values);
            values.into_iter().map(f32::from).collect()
        }
        Dtype::F32 | Dtype::F64 | Dtype::Bf16 | Dtype::F16 => {
            let mut values = Vec::new();
            memory.pack(&load.target, &mut values);
            values
        }
    }
}
