//! Training state is sharded: within each of the two replicas of a bidirectional pipeline, and for each micro-batch.

use partita_graph::text;
use partita_lower::{Shard, Strategy};
use partita_program::{Dtype, ProgramKind, Role};
use partita_testkit::verify::verify;
use partita_testkit::{Case, OPTIMIZERS, Outcome, Setup, mismatch, reference_kernels, run};

/// Weights of several extents, some of which no axis divides, a batch norm, a skip connection and biases.
const NETWORK: &str = "model replicas
input x channels=2 extent=8x6
c1 = conv x filters=4 kernel=3 pad=1 bias=false
b1 = batch_norm c1
r1 = relu b1
c2 = conv r1 filters=6 kernel=3 pad=1
s2 = conv r1 filters=6 kernel=1
a2 = add c2 s2
r2 = relu a2
c3 = conv r2 filters=5 kernel=3 pad=1
p3 = max_pool c3 kernel=2 stride=2
l3 = leaky_relu p3 slope=0.1
f = flatten l3
d1 = linear f features=8
t1 = tanh d1
d2 = linear t1 features=3
loss = softmax_cross_entropy d2
";

/// Bidirectional pipelines of stages with replicas of their own weights.
const PIPELINES: [&str; 8] = [
    "stages=[data=2|data=2],micro=2,schedule=chimera",
    "stages=[height=2|height=2],micro=4,schedule=chimera,fuse=off",
    "stages=[data=2|data=2],micro=4,schedule=gems",
    "data=2,stages=[1|1],micro=2,schedule=gems,overlap=off",
    "data=2,stages=[height=2|height=2],micro=2,schedule=gems*1",
    "stages=[width=3|width=3],micro=2,schedule=chimera; ..a2: recompute=on",
    "stages=[data=2,filter=2|data=2,filter=2],micro=2,schedule=chimera",
    "stages=[height=2,channel=2|height=2,channel=2],micro=2,schedule=gems; ..: recompute=selective",
];

fn case(strategy: &str) -> Case {
    Case {
        graph: text::parse(NETWORK).unwrap(),
        strategy: strategy.parse().unwrap(),
        batch: 8,
        seed: 11,
    }
}

fn outcome(strategy: &str, number: usize) -> Outcome {
    let kernels = reference_kernels(Dtype::F64);
    let case = case(strategy);
    let setup = Setup {
        optimizer: OPTIMIZERS[number % OPTIMIZERS.len()],
        ema: (number % 3 != 1).then_some(0.5),
        clip: (number % 2 == 1).then_some(0.3),
        ..Setup::of_case(&case, &kernels)
    };
    let program = setup.program(ProgramKind::Train).unwrap();
    verify(&program).unwrap_or_else(|faults| panic!("{strategy}: {faults}"));
    run(&setup).unwrap()
}

#[test]
fn shards_of_two_replicas_are_those_of_one_rank() {
    for (number, pipeline) in PIPELINES.iter().enumerate() {
        let plain = outcome(pipeline, number);
        for shard in &Shard::ALL[1..] {
            let strategy = with(pipeline, *shard);
            let found = mismatch(&outcome(&strategy, number), &plain, 1e-10);
            assert_eq!(found, None, "{strategy}");
        }
    }
}

/// The strategy with training state sharded.
fn with(pipeline: &str, shard: Shard) -> String {
    let mut strategy: Strategy = pipeline.parse().unwrap();
    strategy.shard = shard;
    strategy.to_string()
}

/// Bytes of the buffers of a role on all ranks together.
fn bytes(strategy: &str, role: Role) -> u64 {
    let kernels = reference_kernels(Dtype::F64);
    let case = case(strategy);
    let mut setup = Setup::of_case(&case, &kernels);
    setup.optimizer = OPTIMIZERS[1];
    let program = setup.program(ProgramKind::Train).unwrap();
    let bodies = (0..program.mesh.ranks()).map(|rank| program.body(rank));
    bodies.map(|body| body.bytes_of(role).0).sum()
}

#[test]
fn each_level_of_sharding_takes_less_state() {
    for pipeline in PIPELINES {
        let of = |role: Role| Shard::ALL.map(|shard| bytes(&with(pipeline, shard), role));
        let [off, optimizer, gradients, parameters] = of(Role::Optimizer);
        assert!(optimizer < off * 3 / 4, "{pipeline}: {optimizer} of {off}");
        assert_eq!([gradients, parameters], [optimizer; 2], "{pipeline}");
        let [off, _, gradients, parameters] = of(Role::Parameter);
        assert_eq!(gradients, off, "{pipeline}");
        assert!(
            parameters < off * 3 / 4,
            "{pipeline}: {parameters} of {off}"
        );
    }
}

/// Weights far larger than activations, and several of them in each of two stages.
const WIDE: &str = "model wide
input x channels=16 extent=2x2
f = flatten x
d1 = linear f features=64
r1 = relu d1
d2 = linear r1 features=64
r2 = relu d2
d3 = linear r2 features=64
r3 = relu d3
d4 = linear r3 features=64
r4 = relu d4
d5 = linear r4 features=64
r5 = relu d5
d6 = linear r5 features=64
r6 = relu d6
d7 = linear r6 features=64
r7 = relu d7
d8 = linear r7 features=64
r8 = relu d8
d9 = linear r8 features=3
loss = softmax_cross_entropy d9
";

/// Bytes of the largest arena of a rank.
fn arena(strategy: &str) -> u64 {
    let kernels = reference_kernels(Dtype::F64);
    let case = Case {
        graph: text::parse(WIDE).unwrap(),
        ..case(strategy)
    };
    let mut setup = Setup::of_case(&case, &kernels);
    setup.optimizer = OPTIMIZERS[0];
    let program = setup.program(ProgramKind::Train).unwrap();
    verify(&program).unwrap_or_else(|faults| panic!("{strategy}: {faults}"));
    let ranks = 0..program.mesh.ranks();
    ranks.map(|rank| program.body(rank).arena.0).max().unwrap()
}

#[test]
fn sharded_gradients_take_less_than_whole_ones_with_several_micro_batches() {
    for strategy in [
        "data=4,micro=2",
        "data=4,micro=2,overlap=off",
        "stages=[data=2|data=2],micro=2,schedule=gpipe",
        "stages=[data=2|data=2],micro=4,schedule=zero-bubble",
        "stages=[data=2|data=2],micro=4,schedule=chimera",
    ] {
        let of = |shard| arena(&with(strategy, shard));
        let [_, optimizer, gradients, parameters] = Shard::ALL.map(of);
        assert!(
            gradients < optimizer,
            "{strategy}: {gradients} of {optimizer}"
        );
        assert!(
            parameters < gradients,
            "{strategy}: {parameters} of {gradients}"
        );
    }
}
