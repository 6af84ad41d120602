//! Blocks of layers computed slab by slab equal whole ones, alone and with every other split.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_lower::{class_count, lower, lower_rank};
use partita_program::{Dtype, Program, ProgramKind};
use partita_testkit::{
    Case, Setup, assert_like_one_rank, least_of, random_chunked_case, reference_kernels, seeds,
};

/// Convolutions of all kinds, a sum and a concatenation across the block, poolings, a transposed convolution.
const NETWORK: &str = "model chunks
input x channels=2 extent=20x8x6
a1 = conv x filters=3 kernel=3 pad=1 bias=true
r1 = leaky_relu a1 slope=0.2
a2 = conv r1 filters=3 kernel=3 pad=1 bias=true
s1 = add a1 a2
p1 = max_pool s1 kernel=2 stride=2
b1 = conv p1 filters=4 kernel=3 pad=1 bias=true
g1 = gelu b1
u1 = conv_transpose g1 filters=3 kernel=2 stride=2 bias=true
k1 = concat s1 u1
c1 = conv k1 filters=2 kernel=3 pad=1 bias=true
end = conv c1 filters=3 kernel=1 bias=true
loss = softmax_cross_entropy end
";

#[test]
fn slabs_equal_whole_tensors() {
    let blocks = [
        "a1..s1: chunks=3",
        "a1..p1: chunks=4",
        "a1: chunks=10; p1..g1: chunks=2; u1..c1: chunks=5",
        "a1..end: chunks=3",
        "r1..r1: chunks=2; k1: chunks=7",
    ];
    let meshes = [
        "data=1",
        "data=1,fuse=off",
        "depth=2",
        "height=2,width=2,overlap=off",
        "data=2,micro=2,shard=parameters",
    ];
    assert_like_one_rank(NETWORK, 3, (&meshes, &blocks));
}

#[test]
fn every_rank_lowers_to_the_body_of_its_class() {
    let kernels = reference_kernels(Dtype::F64);
    let mut fewer = 0;
    let range = seeds(140, 4, 9000);
    let least = least_of(10, 140, &range);
    for seed in range {
        let case = random_chunked_case(seed);
        let setup = Setup::of_case(&case, &kernels);
        for kind in [ProgramKind::Train, ProgramKind::Evaluate] {
            let request = setup.request(kind);
            let program = lower(&request).unwrap();
            assert!(
                program == Program::parse(&program.to_text()).unwrap(),
                "seed {seed} reads as it prints"
            );
            fewer += usize::from(program.bodies.len() < program.mesh.ranks());
            // Elsewhere classes follow from bodies, in which message numbers have gaps.
            let is_known = class_count(&request).unwrap().is_some();
            for rank in (0..program.mesh.ranks()).filter(|_| is_known) {
                let alone = lower_rank(&request, rank).unwrap();
                let is_same = alone == *program.body(rank);
                assert!(is_same, "seed {seed} {} rank {rank}", case.strategy);
            }
        }
    }
    assert!(
        fewer > least,
        "{fewer} programs have a class of several ranks"
    );
}

#[test]
fn more_chunks_take_less_memory() {
    let graph = partita_graph::text::parse(NETWORK).unwrap();
    let kernels = reference_kernels(Dtype::F64);
    let memory = |strategy: &str| {
        let case = Case {
            graph: graph.clone(),
            strategy: strategy.parse().unwrap(),
            batch: 2,
            seed: 1,
        };
        let setup = Setup::of_case(&case, &kernels);
        lower(&setup.request(ProgramKind::Train))
            .unwrap()
            .memory_max()
    };
    let all = [
        "data=1",
        "data=1; a1..p1: recompute=on",
        "data=1; a1..p1: chunks=2",
        "data=1; a1..p1: chunks=10",
    ];
    let all = all.map(memory);
    assert!(all.is_sorted_by(|a, b| a > b), "{all:?}");
}

#[test]
fn a_batch_norm_is_computed_in_chunks_where_it_takes_no_statistics() {
    let text = NETWORK.replace(
        "r1 = leaky_relu a1 slope=0.2",
        "n1 = batch_norm a1 epsilon=1e-3 momentum=0.1\nr1 = leaky_relu n1 slope=0.2",
    );
    let graph = partita_graph::text::parse(&text).unwrap();
    let kernels = reference_kernels(Dtype::F64);
    let case = Case {
        graph,
        strategy: "depth=2; a1..p1: chunks=3".parse().unwrap(),
        batch: 2,
        seed: 1,
    };
    let refusal = case.strategy.check(&case.graph, 2).unwrap_err().to_string();
    assert!(
        refusal.contains("`n1` cannot be computed in chunks"),
        "{refusal}"
    );
    case.strategy.check_layout(&case.graph, 2).unwrap();
    let setup = Setup::of_case(&case, &kernels);
    assert!(lower(&setup.request(ProgramKind::Train)).is_err());
    for kind in [ProgramKind::Evaluate, ProgramKind::Infer] {
        let program = lower(&setup.request(kind)).unwrap();
        partita_verify::verify(&program).unwrap();
    }
}
