//! A rank with its arena, and what lies in it.

use super::bodies::Random;
use partita_program::{Body, BufferId, Staging, View};
use partita_run::{Arena, Element, NoSink, RankRunner, SystemClock, Transport};
use partita_space::{Mesh, Seconds};
use partita_testkit::{MemorySource, ReferenceKernels, Samples};
use partita_threads::ThreadTransport;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

pub fn no_samples() -> Arc<Samples> {
    Arc::new(Samples {
        shape: [1; 4],
        values: vec![],
        targets: vec![],
        features: vec![],
    })
}

/// A rank of a mesh in its world, with memory for a body.
pub fn runner<'w>(
    mesh: Mesh,
    rank: usize,
    body: &Body,
    mut transport: ThreadTransport,
    samples: Arc<Samples>,
    cancel: &'w AtomicBool,
) -> RankRunner<'w> {
    let allocated = transport.allocate(&Staging::of(body, &mesh));
    allocated.expect("there is memory for packets");
    RankRunner {
        rank,
        arena: Arena::new(body.arena),
        kernels: Box::new(ReferenceKernels::<f64>::new(mesh, rank)),
        transport: Box::new(transport),
        source: Box::new(MemorySource::new(samples, mesh, rank)),
        sink: Box::new(NoSink),
        clock: Box::new(SystemClock::start()),
        cancel,
        // Miri is slower by orders of magnitude.
        watchdog: Seconds(if cfg!(miri) { 30.0 } else { 0.3 }),
    }
}

pub fn data_mesh(ranks: usize) -> Mesh {
    Mesh::new([ranks, 1, 1, 1, 1, 1, 1])
}

pub fn set<T: Element + std::ops::AddAssign>(
    runner: &mut RankRunner<'_>,
    body: &Body,
    view: &View,
    values: &[T],
) {
    runner.arena.memory(body).unpack(view, values, false);
}

pub fn get<T: Element>(runner: &mut RankRunner<'_>, body: &Body, view: &View) -> Vec<T> {
    let mut values = Vec::new();
    runner.arena.memory(body).pack(view, &mut values);
    values
}

pub fn part(view: &View, dim: usize, start: usize, extent: usize) -> View {
    let mut part = *view;
    part.start[dim] += start;
    part.extent[dim] = extent;
    part
}

pub fn whole(body: &Body, buffer: u32) -> View {
    body.buffers[buffer as usize].view(BufferId(buffer))
}

/// Conversion of random numbers, which are f64.
pub trait IntoElement<T> {
    fn into_element(self) -> T;
}

impl IntoElement<f32> for f64 {
    fn into_element(self) -> f32 {
        self as f32
    }
}

impl IntoElement<f64> for f64 {
    fn into_element(self) -> f64 {
        self
    }
}

/// What a rank adds to a sum.
pub fn addend<T>(rank: usize, length: usize) -> Vec<T>
where
    f64: IntoElement<T>,
{
    let values = Random::new(rank as u64 + 1).values(length);
    values.into_iter().map(f64::into_element).collect()
}
