//! Levels of a U-Net that are split over different axes equal one rank in f64.

use partita_testkit::assert_like_one_rank;

const UNET: &str = "model unet
input x channels=2 extent=8x8x8
a1 = conv x filters=4 kernel=3 pad=1 bias=false
n1 = group_norm a1 groups=2 epsilon=1e-3
r1 = relu n1
p1 = max_pool r1 kernel=2 stride=2
a2 = conv p1 filters=4 kernel=3 pad=1 bias=false
n2 = batch_norm a2 epsilon=1e-3 momentum=0.1
r2 = relu n2
p2 = max_pool r2 kernel=2 stride=2
a3 = conv p2 filters=8 kernel=3 pad=1 bias=false
n3 = group_norm a3 groups=4 epsilon=1e-3
r3 = relu n3
b3 = conv r3 filters=8 kernel=3 pad=1 bias=true
u2 = conv_transpose b3 filters=4 kernel=2 stride=2 bias=true
c2 = concat r2 u2
b2 = conv c2 filters=4 kernel=3 pad=1 bias=false
m2 = batch_norm b2 epsilon=1e-3 momentum=0.1
q2 = relu m2
u1 = conv_transpose q2 filters=4 kernel=2 stride=2 bias=true
c1 = concat r1 u1
b1 = conv c1 filters=3 kernel=3 pad=1 bias=true
loss = softmax_cross_entropy b1
";

#[test]
fn levels_over_other_axes_equal_one_rank() {
    let levels = [
        // Repeated.
        "a3..b3: D=-",
        "a2..q2: D=-,H=-",
        "a2..q2: H=-; a3..b3: D=-",
        // Filters, with and without the transposed convolution.
        "a3..u2: D=-,F=depth",
        "a3..b3: D=-,H=-,F=depth+height",
        // Back to another axis below.
        "a2..u1: H=-,F=height; a3..u2: D=-,H=height,F=depth",
        "a2..u1: D=-,F=depth; a3..u2: H=-,C=height",
        "a2..q2: D=-; a3..u2: H=-,C=height",
        "a2..q2: D=-; a3..b3: D=depth,H=-",
    ];
    let meshes = ["depth=2,height=2", "data=2,depth=2,height=2,overlap=off"];
    assert_like_one_rank(UNET, 9, (&meshes, &levels));
}

/// As a search chooses them where little memory is left.
#[test]
fn levels_over_other_axes_that_save_memory_equal_one_rank() {
    let levels = [
        "a3..u2: D=-,F=depth; ..n1: recompute=on; p2..u2: recompute=on",
        "a2..u1: H=-,F=height; a3..u2: D=-,H=height,F=depth; n2..a3: recompute=on; r3..u2: recompute=on",
        "a2..u1: D=-,F=depth; a3..u2: H=-,C=height; p1..n2: recompute=on; c2..b2: recompute=on",
        "a2..u1: D=-,H=-,C=height,F=depth; a2..r2: recompute=on; p2..u2: recompute=on",
    ];
    let meshes = [
        "depth=2,height=2",
        "depth=2,height=2,shard=parameters",
        "data=2,depth=2,height=2,shard=gradients",
    ];
    assert_like_one_rank(UNET, 9, (&meshes, &levels));
}
