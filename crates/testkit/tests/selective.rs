//! Selective recomputation equals keeping all activations, alone and with every other split.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use partita_testkit::assert_like_one_rank;

/// Norms of each kind, activations that read their input and their output, a gate, a skip connection, a residual sum, dropout and
/// an upsampling.
const NETWORK: &str = "model selective
input x channels=2 extent=8x8x6
a1 = conv x filters=4 kernel=3 pad=1
n1 = group_norm a1 groups=2
r1 = relu n1
a2 = conv r1 filters=4 kernel=3 pad=1
g2 = silu a2
d2 = dropout g2 rate=0.25
s2 = add d2 r1
p1 = max_pool s2 kernel=2 stride=2
b1 = conv p1 filters=6 kernel=3 pad=1
m1 = layer_norm b1
e1 = gelu m1
t1 = multiply e1 m1
b2 = conv t1 filters=4 kernel=3 pad=1
l2 = leaky_relu b2 slope=0.2
u1 = upsample l2 factor=2
k1 = concat u1 r1
c1 = conv k1 filters=4 kernel=3 pad=1
q1 = prelu c1
end = conv q1 filters=3 kernel=1
loss = softmax_cross_entropy end
";

#[test]
fn values_computed_again_are_those_that_were_dropped() {
    let entries = [
        "..: recompute=selective",
        "n1..e1: recompute=selective",
        "..: recompute=selective; p1..e1: recompute=on",
        "..: recompute=selective; b2..u1: recompute=off",
        "..: recompute=selective; k1..c1: chunks=2",
        "..: recompute=selective; a1..s2: halo=grouped",
    ];
    let meshes = [
        "data=1",
        "data=1,fuse=off",
        "depth=2",
        "height=2,width=2,overlap=off",
        "micro=2",
        "data=2,shard=parameters",
        "filter=2",
        "stages=[..p1: 1|b1..: depth=2],micro=2",
        "stages=2,micro=2,schedule=gems",
        "stages=2,micro=2,schedule=zero-bubble",
    ];
    assert_like_one_rank(NETWORK, 4, (&meshes, &entries));
}
