//! Groups of layers with one wide halo are exact at seams and at the border of the image.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_lower::{Strategy, lower, lower_rank};
use partita_program::{Dtype, Program, ProgramKind};
use partita_testkit::{
    Setup, assert_like_one_rank, least_of, random_grouped_case, reference_kernels, seeds,
};

const BLOCKS: &str = "model blocks
input x channels=3 extent=16x16
c0 = conv x filters=4 kernel=3 pad=1 bias=true
n1 = batch_norm c0 epsilon=1e-3 momentum=0.1
r1 = relu n1
c1 = conv r1 filters=4 kernel=3 pad=1 bias=true
m1 = batch_norm c1 epsilon=1e-3 momentum=0.1
q1 = relu m1
d1 = conv q1 filters=4 kernel=3 pad=1 bias=true
s1 = add c0 d1
n2 = batch_norm s1 epsilon=1e-3 momentum=0.1
r2 = relu n2
c2 = conv r2 filters=4 kernel=3 pad=1 bias=true
m2 = batch_norm c2 epsilon=1e-3 momentum=0.1
q2 = relu m2
d2 = conv q2 filters=4 kernel=3 pad=1 bias=true
s2 = add s1 d2
p = max_pool s2 kernel=3 stride=2 pad=1
end = conv p filters=3 kernel=1 bias=true
loss = softmax_cross_entropy end
";

#[test]
fn blocks_are_exact_at_seams_and_at_the_border() {
    let groups = [
        "c0..p: halo=grouped",
        "n1..s1: halo=grouped; n2..s2: halo=grouped",
        "n1..d1: halo=grouped; s1..p: halo=grouped",
        "c0..c1: halo=grouped; q1..m2: halo=grouped; q2..: halo=grouped",
    ];
    let meshes = [
        "height=2,width=2",
        "height=3,width=2,fuse=off",
        "data=2,width=3,overlap=off",
    ];
    assert_like_one_rank(BLOCKS, 5, (&meshes, &groups));
}

#[test]
fn every_rank_lowers_to_the_body_of_its_class() {
    let kernels = reference_kernels(Dtype::F64);
    let (mut fewer, single) = (0usize, Strategy::single());
    let range = seeds(200, 4, 200);
    let least = least_of(20, 200, &range);
    for seed in range {
        let case = random_grouped_case(seed);
        assert_ne!(case.strategy, single);
        let setup = Setup::of_case(&case, &kernels);
        for kind in [ProgramKind::Train, ProgramKind::Evaluate] {
            let request = setup.request(kind);
            let program = lower(&request).unwrap();
            let again = Program::parse(&program.to_text()).unwrap();
            assert!(program == again, "seed {seed} reads as it prints");
            fewer += usize::from(program.bodies.len() < program.mesh.ranks());
            for rank in 0..program.mesh.ranks() {
                let alone = lower_rank(&request, rank).unwrap();
                assert!(
                    alone == *program.body(rank),
                    "seed {seed} {} rank {rank}",
                    case.strategy
                );
            }
        }
    }
    assert!(
        fewer > least,
        "{fewer} programs have a class of several ranks"
    );
}
