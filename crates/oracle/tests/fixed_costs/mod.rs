//! Hand-made programs, and costs so simple that their times can be added up on paper.
#![allow(dead_code, reason = "each test file uses a part")]

use partita_cluster::LayerPrecision;
use partita_oracle::{
    AlltoallBlocks, CollectiveCost, Contention, CostBasis, CostError, Costs, KernelBasis,
    KernelCost, LoadCost, MessageCost, Progress, SampleRead, Uncertainty,
};
use partita_program::{
    Algorithm, Body, Buffer, BufferId, Collective, CollectiveKind, Count, Distribution, Dtype,
    Exchange, Item, Kernel, KernelShape, Load, Origin, Phase, Program, ProgramKind, Receive, Role,
    Send, Task, TaskId, View, When, Work,
};
use partita_space::random::SplitMix;
use partita_space::{AxisSet, Bytes, Mesh, Offset, Rank, Seconds};

/// A kernel takes what its algorithm says ([`BodyBuilder::kernel_of`]); a message 1 s and 1 s per 4 bytes (10 times the latency
/// between nodes); an allreduce a second per member and 4 bytes; an allgather a second per 4 bytes.
pub struct FixedCosts {
    pub per_node: usize,
    pub host: f64,
    pub progress: Progress,
    pub contention: Contention,
}

impl Costs for FixedCosts {
    fn basis(&self) -> CostBasis {
        CostBasis::Modeled
    }

    fn uncertainty(&self, _ranks: usize) -> Uncertainty {
        Uncertainty::NONE
    }

    fn progress(&self) -> Progress {
        self.progress
    }

    fn contention(&self) -> Contention {
        self.contention
    }

    fn precision(&self) -> LayerPrecision {
        LayerPrecision::F32
    }

    fn check_capacity(&self, _ranks: usize) -> Result<(), CostError> {
        Ok(())
    }

    fn node(&self, rank: Rank) -> usize {
        rank / self.per_node
    }

    fn link(&self, a: Rank, b: Rank) -> u32 {
        u32::from(self.node(a) != self.node(b))
    }

    fn kernel(
        &self,
        shape: &KernelShape<'_>,
        algorithm: &Algorithm,
        _count: &Count,
    ) -> Result<KernelCost, CostError> {
        let (alone, together) = match algorithm.0.split_once('/') {
            Some((alone, together)) => (alone, together),
            None => (algorithm.0.as_str(), algorithm.0.as_str()),
        };
        let seconds = |text: &str| text.parse().map(Seconds);
        seconds(alone)
            .and_then(|alone| {
                let together = seconds(together)?;
                Ok(KernelCost {
                    alone,
                    together,
                    basis: KernelBasis::Modeled,
                })
            })
            .map_err(|_| CostError::Kernel {
                signature: shape.signature(),
                algorithm: algorithm.0.clone(),
            })
    }

    fn layer_factor(&self, _origin: &Origin) -> f64 {
        1.0
    }

    fn message(
        &self,
        from: Rank,
        to: Rank,
        bytes: Bytes,
        contention: f64,
    ) -> Result<MessageCost, CostError> {
        let inter = f64::from(self.link(from, to));
        Ok(MessageCost {
            latency: Seconds(1.0 + 9.0 * inter),
            transfer: Seconds(bytes.0 as f64 / 4.0 * contention),
            host: Seconds(self.host),
        })
    }

    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let nodes = members
            .chunk_by(|&a, &b| self.node(a) == self.node(b))
            .count();
        Ok(CollectiveCost {
            latency: Seconds((members.len() + nodes - 1) as f64),
            transfer: Seconds(bytes.0 as f64 / 4.0 * contention),
            transfer_min: Seconds(bytes.0 as f64 / 4.0 * contention),
            host: Seconds(self.host),
        })
    }

    fn allgather(
        &self,
        _members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let bytes: Bytes = bytes_per_member.iter().copied().sum();
        Ok(CollectiveCost {
            latency: Seconds(0.0),
            transfer: Seconds(bytes.0 as f64 / 4.0 * contention),
            transfer_min: Seconds(bytes.0 as f64 / 4.0 * contention),
            host: Seconds(self.host),
        })
    }

    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.allgather(members, bytes_per_member, contention)
    }

    fn alltoall(
        &self,
        members: &[Rank],
        blocks: AlltoallBlocks,
        contention: f64,
    ) -> Result<CollectiveCost, CostError> {
        let cost = self.allgather(members, &[blocks.given], contention)?;
        Ok(CollectiveCost {
            latency: Seconds(blocks.largest.0 as f64 / 4.0),
            ..cost
        })
    }

    fn load(&self, _rank: Rank, read: SampleRead) -> Result<LoadCost, CostError> {
        Ok(LoadCost::alone(Seconds(read.bytes.0 as f64 / 4.0)))
    }

    fn write(&self, _rank: Rank, bytes: Bytes, _writers: usize) -> Result<Seconds, CostError> {
        Ok(Seconds(bytes.0 as f64 / 4.0))
    }
}

/// Builds a body. Every view is a part of one buffer of f32.
#[derive(Clone, Default)]
pub struct BodyBuilder {
    pub body: Body,
}

impl BodyBuilder {
    pub fn new() -> Self {
        let buffer = Buffer {
            name: "all".to_owned(),
            role: Role::Activation,
            dtype: Dtype::F32,
            dims: [1, 1, 1, 1, 64],
            tensor: None,
            offset: Bytes(0),
        };
        let body = Body {
            buffers: vec![buffer],
            arena: Bytes(256),
            ..Body::default()
        };
        Self { body }
    }

    fn add(&mut self, phase: Phase, after: &[u32], work: Work) -> u32 {
        self.body.tasks.push(Task {
            origin: Origin {
                layer: format!("layer{}", self.body.tasks.len()),
                phase,
                turn: 0,
            },
            after: after.iter().map(|&id| TaskId(id)).collect(),
            work,
        });
        self.body.tasks.len() as u32 - 1
    }

    pub fn kernel(&mut self, phase: Phase, after: &[u32], seconds: f64) -> u32 {
        self.kernel_of(phase, after, &seconds.to_string())
    }

    /// A kernel that takes `5` seconds, or `5/8`: 5 alone, 8 while all ranks of its node compute.
    pub fn kernel_of(&mut self, phase: Phase, after: &[u32], time: &str) -> u32 {
        let kernel = Kernel::Fill {
            target: view(1),
            value: 0.0,
        };
        let work = Work::Compute {
            kernel,
            algorithm: Algorithm(time.to_owned()),
            workspace: None,
        };
        self.add(phase, after, work)
    }

    /// Sends and receives `elements` with every offset.
    pub fn exchange(
        &mut self,
        phase: Phase,
        after: &[u32],
        sequence: u32,
        offsets: &[Offset],
        elements: usize,
    ) -> u32 {
        let exchange = Exchange {
            sequence,
            sends: offsets
                .iter()
                .map(|&to| Send {
                    to,
                    part: 0,
                    view: view(elements),
                })
                .collect(),
            receives: offsets
                .iter()
                .map(|&from| Receive {
                    from,
                    part: 0,
                    view: view(elements),
                    accumulate: false,
                })
                .collect(),
        };
        self.add(phase, after, Work::Exchange(exchange))
    }

    pub fn allreduce(
        &mut self,
        phase: Phase,
        after: &[u32],
        sequence: u32,
        group: AxisSet,
        elements: usize,
    ) -> u32 {
        let kind = CollectiveKind::AllReduce {
            views: vec![view(elements)],
        };
        self.collective(phase, after, sequence, group, kind)
    }

    pub fn allgather(
        &mut self,
        phase: Phase,
        after: &[u32],
        sequence: u32,
        group: AxisSet,
        members: usize,
        elements: usize,
    ) -> u32 {
        let kind = CollectiveKind::AllGather {
            source: view(elements),
            targets: vec![view(elements); members].into(),
        };
        self.collective(phase, after, sequence, group, kind)
    }

    pub fn collective(
        &mut self,
        phase: Phase,
        after: &[u32],
        sequence: u32,
        group: AxisSet,
        kind: CollectiveKind,
    ) -> u32 {
        let work = Work::Collective(Collective {
            sequence,
            group,
            submesh: None,
            kind,
        });
        self.add(phase, after, work)
    }

    pub fn load(&mut self, after: &[u32], elements: usize) -> u32 {
        let load = Load {
            item: Item::Sample,
            when: When::Next,
            distribution: Distribution::replicated([1, 1, 1, 1, 64]),
            target: view(elements),
        };
        self.add(Phase::Load, after, Work::Load(load))
    }
}

pub fn view(elements: usize) -> View {
    View {
        buffer: BufferId(0),
        start: [0; 5],
        extent: [1, 1, 1, 1, elements],
    }
}

/// One step along an axis.
pub fn step(axis: usize, by: i32) -> Offset {
    let mut offset = Offset::default();
    offset.0[axis] = by;
    offset
}

pub fn program(mesh: Mesh, bodies: Vec<Body>, class_of: Vec<u32>) -> Program {
    Program {
        title: "by hand".to_owned(),
        kind: ProgramKind::Train,
        dtype: Dtype::F32,
        batch: 8,
        mesh,
        local_statistics: partita_space::AxisSet::NONE,
        bodies,
        class_of,
    }
}

/// A spatially parallel program: along depth and height each rank exchanges with its neighbors, all
/// with `layers` of interior kernel, exchange, border kernel, backward, and an allreduce each;
/// now and then an allgather. Ranks with the same neighbors have one body; the time of kernels is
/// drawn by body.
pub fn spatial(extents: [usize; 7], layers: usize, seed: u64) -> Program {
    let mesh = Mesh::new(extents);
    let mut neighborhoods: Vec<Vec<Offset>> = Vec::new();
    let mut class_of = Vec::new();
    for rank in 0..mesh.ranks() {
        let steps = [step(1, -1), step(1, 1), step(2, -1), step(2, 1)];
        let near: Vec<Offset> = steps
            .into_iter()
            .filter(|&by| mesh.neighbor(rank, by).is_some())
            .collect();
        let class = neighborhoods
            .iter()
            .position(|other| *other == near)
            .unwrap_or_else(|| {
                neighborhoods.push(near);
                neighborhoods.len() - 1
            });
        class_of.push(class as u32);
    }
    let bodies = neighborhoods
        .iter()
        .enumerate()
        .map(|(class, near)| spatial_body(&mesh, near, layers, seed + 1000 * class as u64))
        .collect();
    program(mesh, bodies, class_of)
}

fn spatial_body(mesh: &Mesh, near: &[Offset], layers: usize, seed: u64) -> Body {
    let mut stream = SplitMix(seed);
    let mut draw = || 1.0 + stream.between(0, 999) as f64 / 50.0;
    let all = mesh.split_axes();
    let depth = AxisSet::of([partita_space::Axis::Depth]);
    let mut builder = BodyBuilder::new();
    let mut last = builder.load(&[], 3);
    let mut sequence = 0;
    for layer in 0..layers {
        let halo = builder.exchange(
            Phase::Forward,
            &[last],
            sequence,
            near,
            2 + layer % 5 + near.len() % 2,
        );
        builder.kernel(Phase::Forward, &[last], draw());
        last = builder.kernel(Phase::Forward, &[halo], draw());
        sequence += 1;
    }
    last = builder.allgather(
        Phase::Forward,
        &[last],
        0,
        depth,
        mesh.extent(partita_space::Axis::Depth),
        2,
    );
    let mut sums = Vec::new();
    for layer in 0..layers {
        let halo = builder.exchange(Phase::Backward, &[last], sequence, near, 3);
        let weights = builder.kernel(Phase::Backward, &[last], draw());
        let group = if layer % 3 == 0 {
            all
        } else {
            all.minus(depth)
        };
        sums.push(builder.allreduce(Phase::Reduce, &[weights], 1 + layer as u32, group, 5));
        last = builder.kernel(Phase::Backward, &[halo], draw());
        sequence += 1;
    }
    sums.push(last);
    builder.kernel(Phase::Update, &sums, draw());
    builder.body
}
