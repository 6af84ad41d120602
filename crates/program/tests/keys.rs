//! Kernel keys stand in users' files: the key of each kind of kernel, and every word of it, is compared
//! with a list.
//!
//! `UPDATE=1 cargo test -p partita-program --test it keys` adds keys of new kernels to the list. It changes none
//! that is listed: where the key of a kernel has to change, raise `KernelShape::KEY_VERSION`, which starts
//! a list of its own. Kernels with other keys are measured again.

mod positions;

use partita_program::{
    Activation, Buffer, BufferId, ClassTerms, Direction, Distribution, DropoutMask, Dtype,
    ElementFunction, Kernel, KernelShape, Optimizer, PoolKind, Role, Taps, Transform, View,
};
use partita_space::{Bytes, ResampleRule, Resampling};
use std::collections::HashSet;
use std::mem::discriminant;
use std::path::Path;
use std::{env, fs};

const TAPS: Taps = Taps {
    kernel: [3, 2, 1],
    stride: [1, 2, 3],
    dilation: [1, 1, 2],
};
const SHIFT: [i64; 3] = [1, 0, -1];

/// In the order of the constants below.
fn buffers() -> Vec<Buffer> {
    let all = [
        (Role::Activation, Dtype::F32, [2, 6, 10, 10, 16]),
        (Role::Activation, Dtype::F32, [2, 4, 8, 8, 16]),
        (Role::Parameter, Dtype::F32, [3, 2, 1, 8, 16]),
        (Role::PackedWeights, Dtype::F32, [1, 1, 1, 1, 900]),
        (Role::Parameter, Dtype::F32, [1, 1, 1, 1, 16]),
        (Role::Statistics, Dtype::F64, [1, 1, 1, 2, 16]),
        (Role::Staging, Dtype::I16, [2, 16, 4, 8, 8]),
    ];
    let buffer = |(role, dtype, dims)| Buffer {
        name: String::new(),
        role,
        dtype,
        dims,
        tensor: None,
        offset: Bytes(0),
    };
    all.into_iter().map(buffer).collect()
}

const fn view(buffer: u32, start: [usize; 5], extent: [usize; 5]) -> View {
    View {
        buffer: BufferId(buffer),
        start,
        extent,
    }
}

/// A box inside a tensor.
const X: View = view(0, [0, 1, 1, 1, 0], [2, 4, 8, 8, 16]);
/// A whole tensor.
const Y: View = view(1, [0; 5], [2, 4, 8, 8, 16]);
const W: View = view(2, [0; 5], [3, 2, 1, 8, 16]);
const PACKED: View = view(3, [0; 5], [1, 1, 1, 1, 900]);
const VECTOR: View = view(4, [0; 5], [1, 1, 1, 1, 16]);
const SUMS: View = view(5, [0; 5], [1, 1, 1, 2, 16]);
const SCALAR: View = view(5, [0; 5], [1; 5]);
const STORED: View = view(6, [0; 5], [2, 16, 4, 8, 8]);

fn contents() -> Vec<Kernel> {
    let transforms = [
        Transform::Identity,
        Transform::Scale { factor: 0.00390625 },
        Transform::LogOnePlus,
    ];
    let import = |transform| Kernel::Import {
        source: STORED,
        target: Y,
        transform,
    };
    let copy = |accumulate| Kernel::Copy {
        source: X,
        target: Y,
        accumulate,
    };
    let fill = Kernel::Fill {
        target: X,
        value: 0.5,
    };
    let mut all = vec![fill, copy(false), copy(true)];
    all.extend(transforms.map(import));
    all
}

fn convolutions() -> Vec<Kernel> {
    let pack = |direction| Kernel::PackWeights {
        w: W,
        packed: PACKED,
        direction,
        taps: TAPS,
        groups: 2,
    };
    let forward = |w, bias, accumulate| Kernel::ConvolutionForward {
        x: X,
        w,
        bias,
        y: Y,
        taps: TAPS,
        groups: 2,
        accumulate,
    };
    let backward = |w, bias, accumulate| Kernel::ConvolutionBackwardData {
        dy: Y,
        w,
        bias,
        dx: X,
        taps: TAPS,
        shift: SHIFT,
        groups: 2,
        accumulate,
    };
    vec![
        pack(Direction::Forward),
        pack(Direction::BackwardData),
        forward(W, None, false),
        forward(PACKED, Some(VECTOR), false),
        forward(W, Some(VECTOR), true),
        backward(W, None, false),
        backward(PACKED, Some(VECTOR), true),
        Kernel::ConvolutionBackwardWeight {
            x: X,
            dy: Y,
            dw: W,
            taps: TAPS,
            groups: 2,
            accumulate: false,
        },
        Kernel::BiasBackward {
            dy: Y,
            db: VECTOR,
            accumulate: false,
        },
    ]
}

fn pools() -> Vec<Kernel> {
    let both = |kind| {
        let needs_x = match kind {
            PoolKind::Max | PoolKind::L2 => true,
            PoolKind::AverageAll | PoolKind::AverageInside => false,
        };
        [
            Kernel::PoolForward {
                kind,
                x: X,
                y: Y,
                taps: TAPS,
                shift: SHIFT,
            },
            Kernel::PoolBackward {
                kind,
                x: needs_x.then_some(X),
                dy: Y,
                dx: X,
                taps: TAPS,
                shift: SHIFT,
                accumulate: needs_x,
            },
        ]
    };
    PoolKind::ALL.into_iter().flat_map(both).collect()
}

fn resamplings() -> Vec<Kernel> {
    let maps = [
        Resampling::linear(6, 2, false),
        Resampling::average(10, 8),
        Resampling::pad(ResampleRule::Reflect, 1),
    ];
    let others = [
        Resampling::pad(ResampleRule::Zero, 1),
        Resampling::nearest(3),
        Resampling::IDENTITY,
    ];
    vec![
        Kernel::ResampleForward { x: X, y: Y, maps },
        Kernel::ResampleBackward {
            dy: Y,
            dx: X,
            maps: others,
            accumulate: true,
        },
    ]
}

fn batch_norms() -> Vec<Kernel> {
    let (count, epsilon) = (512, 1e-5);
    vec![
        Kernel::BatchNormStatistics {
            x: X,
            sums: SUMS,
            accumulate: false,
        },
        Kernel::BatchNormForward {
            x: X,
            sums: SUMS,
            gamma: VECTOR,
            beta: VECTOR,
            y: Y,
            count,
            epsilon,
        },
        Kernel::BatchNormRunning {
            sums: SUMS,
            mean: VECTOR,
            variance: VECTOR,
            count,
            momentum: 0.1,
        },
        inference(),
        Kernel::BatchNormInferenceBackward {
            dy: Y,
            variance: VECTOR,
            gamma: VECTOR,
            dx: X,
            epsilon,
            accumulate: false,
        },
        Kernel::BatchNormBackwardStatistics {
            x: X,
            sums: SUMS,
            dy: Y,
            gradient_sums: SUMS,
            count,
            epsilon,
            accumulate: true,
        },
        Kernel::BatchNormBackwardData {
            x: X,
            sums: SUMS,
            gamma: VECTOR,
            dy: Y,
            gradient_sums: SUMS,
            dx: X,
            count,
            epsilon,
            accumulate: false,
        },
        Kernel::BatchNormBackwardParameters {
            gradient_sums: SUMS,
            dgamma: VECTOR,
            dbeta: VECTOR,
            accumulate: true,
        },
    ]
}

fn inference() -> Kernel {
    Kernel::BatchNormInference {
        x: Y,
        mean: VECTOR,
        variance: VECTOR,
        gamma: VECTOR,
        beta: VECTOR,
        y: Y,
        epsilon: 1e-5,
    }
}

fn layer_norms() -> Vec<Kernel> {
    let (count, epsilon) = (16, 1e-5);
    vec![
        Kernel::LayerNormStatistics {
            x: X,
            sums: SUMS,
            rms: false,
        },
        Kernel::LayerNormForward {
            x: X,
            sums: SUMS,
            gamma: VECTOR,
            beta: VECTOR,
            y: Y,
            count,
            epsilon,
        },
        Kernel::LayerNormBackwardStatistics {
            x: X,
            sums: SUMS,
            gamma: VECTOR,
            dy: Y,
            gradient_sums: SUMS,
            count,
            epsilon,
            rms: false,
        },
        Kernel::LayerNormBackwardData {
            x: X,
            sums: SUMS,
            gamma: VECTOR,
            dy: Y,
            gradient_sums: SUMS,
            dx: X,
            count,
            epsilon,
            accumulate: true,
        },
        Kernel::LayerNormBackwardParameters {
            x: X,
            sums: SUMS,
            dy: Y,
            dgamma: VECTOR,
            dbeta: VECTOR,
            count,
            epsilon,
            accumulate: false,
        },
    ]
}

fn group_norms() -> Vec<Kernel> {
    let (groups, count, epsilon) = (4, 16, 1e-5);
    vec![
        Kernel::GroupNormStatistics { x: X, sums: SUMS },
        Kernel::GroupNormForward {
            x: X,
            sums: SUMS,
            gamma: VECTOR,
            beta: VECTOR,
            y: Y,
            groups,
            count,
            epsilon,
        },
        Kernel::GroupNormBackwardStatistics {
            x: X,
            sums: SUMS,
            dy: Y,
            gradient_sums: Some(SUMS),
            dgamma: VECTOR,
            dbeta: VECTOR,
            groups,
            count,
            epsilon,
            accumulate: false,
        },
        Kernel::GroupNormBackwardData {
            x: X,
            sums: SUMS,
            gamma: VECTOR,
            dy: Y,
            gradient_sums: SUMS,
            dx: X,
            groups,
            count,
            epsilon,
            accumulate: true,
        },
    ]
}

fn slopes_and_softmax() -> Vec<Kernel> {
    let accumulate = true;
    let (x, slopes, y) = (X, VECTOR, Y);
    vec![
        Kernel::PreluForward { x, slopes, y },
        Kernel::PreluBackwardData {
            x,
            slopes,
            dy: Y,
            dx: X,
            accumulate,
        },
        Kernel::PreluBackwardSlopes {
            x,
            dy: Y,
            dslopes: VECTOR,
            one: false,
            accumulate,
        },
        Kernel::SoftmaxForward { x, y },
        Kernel::SoftmaxBackward {
            y,
            dy: Y,
            dx: X,
            accumulate,
        },
    ]
}

fn multiplications() -> Vec<Kernel> {
    let (a, b, y) = (Y, X, Y);
    vec![
        Kernel::Multiply {
            a,
            b,
            y,
            accumulate: false,
        },
        Kernel::MultiplySum {
            a,
            b,
            y,
            accumulate: true,
        },
        Kernel::MultiplyChannelSum {
            a,
            b,
            y,
            accumulate: false,
        },
    ]
}

fn pointwise() -> Vec<Kernel> {
    let both = |function| {
        [
            Kernel::ActivationForward {
                function,
                x: X,
                y: Y,
            },
            Kernel::ActivationBackward {
                function,
                x: X,
                dy: Y,
                dx: X,
                accumulate: true,
            },
        ]
    };
    let mut all: Vec<Kernel> = Activation::ALL.into_iter().flat_map(both).collect();
    all.extend([
        Kernel::LeakyReluForward {
            x: X,
            y: Y,
            negative_slope: 0.01,
        },
        Kernel::LeakyReluBackward {
            y: Y,
            dy: Y,
            dx: X,
            negative_slope: 0.01,
            accumulate: false,
        },
        Kernel::Dropout {
            x: X,
            y: Y,
            rate: 0.5,
            mask: DropoutMask::Element,
            operation: 3,
            distribution: Distribution::replicated([2, 4, 8, 8, 16]),
            halo_low: [0; 5],
            accumulate: false,
        },
        Kernel::ChannelShuffle {
            x: X,
            y: Y,
            groups: 2,
            accumulate: false,
        },
        Kernel::Add { a: X, b: Y, y: Y },
    ]);
    all
}

fn products() -> Vec<Kernel> {
    let linear = |bias| Kernel::LinearForward {
        x: X,
        w: W,
        bias,
        y: Y,
    };
    vec![
        linear(None),
        linear(Some(VECTOR)),
        Kernel::LinearBackwardData {
            dy: Y,
            w: W,
            dx: X,
            accumulate: false,
        },
        Kernel::LinearBackwardWeight {
            x: X,
            dy: Y,
            dw: W,
            accumulate: true,
        },
    ]
}

fn sequences() -> Vec<Kernel> {
    let attention = |[dq, dk, dv]: [Option<View>; 3], accumulate| Kernel::AttentionBackward {
        q: X,
        k: Y,
        v: Y,
        dy: Y,
        dq,
        dk,
        dv,
        heads: 4,
        causal: false,
        window: None,
        bias: None,
        table: None,
        accumulate,
    };
    vec![
        Kernel::EmbeddingForward {
            x: STORED,
            w: W,
            y: Y,
        },
        Kernel::EmbeddingBackward {
            x: STORED,
            dy: Y,
            dw: W,
            accumulate: true,
        },
        Kernel::Positions {
            x: X,
            y: Y,
            distribution: Distribution::replicated([2, 4, 8, 8, 16]),
            halo_low: [0; 5],
        },
        attention([Some(X), Some(Y), Some(Y)], [true, false, false]),
        attention([None, Some(Y), None], [false, true, false]),
    ]
}

fn losses() -> Vec<Kernel> {
    let (count, weight) = (2, 1.0);
    let squared = |dx| Kernel::MeanSquaredError {
        x: X,
        target: Y,
        dx,
        loss: SCALAR,
        count,
        weight,
    };
    let entropy = |dx| Kernel::SoftmaxCrossEntropy {
        x: X,
        target: STORED,
        dx,
        loss: SCALAR,
        count,
        weight,
        smoothing: 0.1,
    };
    let element = |function| Kernel::ElementLoss {
        function,
        x: X,
        target: Y,
        dx: Some(Y),
        loss: SCALAR,
        count,
        weight,
        weights: Vec::new(),
    };
    let errors = |logistic| Kernel::OutputErrors {
        x: X,
        target: Y,
        errors: SUMS,
        logistic,
    };
    vec![
        squared(None),
        squared(Some(Y)),
        entropy(None),
        entropy(Some(Y)),
        errors(false),
        errors(true),
        Kernel::ClassCounts {
            x: X,
            target: STORED,
            counts: SUMS,
            ignore: Some(255),
        },
    ]
    .into_iter()
    .chain(class_losses(weight))
    .chain(ElementFunction::ALL.into_iter().map(element))
    .collect()
}

fn class_losses(weight: f64) -> Vec<Kernel> {
    let dice_sums = |batch| Kernel::DiceSums {
        x: X,
        target: STORED,
        sums: SUMS,
        batch,
        ignore: None,
    };
    let classes = |totals, sums, dx| Kernel::ClassLoss {
        x: X,
        target: STORED,
        totals,
        sums,
        dx,
        loss: SCALAR,
        weight,
        terms: ClassTerms {
            cross_entropy: 1.0,
            dice: if sums.is_some() { 1.0 } else { 0.0 },
            smoothing: 0.1,
            smooth: 1.0,
            background: true,
            weights: Vec::new(),
            dice_weights: None,
            ignore: None,
            all: 8,
            summed: 2,
        },
    };
    vec![
        Kernel::ClassTotals {
            x: X,
            target: STORED,
            totals: VECTOR,
            ignore: Some(255),
        },
        dice_sums(false),
        dice_sums(true),
        classes(None, None, None),
        classes(Some(VECTOR), Some(SUMS), Some(Y)),
    ]
}

fn updates() -> Vec<Kernel> {
    let squares = |sources| Kernel::SumOfSquares {
        sources,
        total: SCALAR,
    };
    vec![
        squares(vec![W]),
        squares(vec![W, VECTOR, W]),
        update(0.0, None),
        update(0.9, None),
        update(0.0, Some((SCALAR, 1.0))),
        Kernel::Update {
            rule: Optimizer::Adam {
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.0001,
            },
            parameter: W,
            gradient: W,
            moments: vec![W, W],
            norms: None,
            clip: Some((SCALAR, 2.5)),
        },
    ]
}

/// Nesterov, AdamW, LARS and LAMB.
fn other_updates() -> Vec<Kernel> {
    let norms = View {
        extent: [1, 1, 1, 1, 2],
        ..SCALAR
    };
    let (momentum, weight_decay) = (0.9, 1e-4);
    let (beta1, beta2, epsilon) = (0.9, 0.999, 1e-6);
    let lars = Optimizer::Lars {
        momentum,
        weight_decay,
        trust: 1e-3,
        epsilon,
    };
    let lamb = Optimizer::Lamb {
        beta1,
        beta2,
        epsilon,
        weight_decay,
    };
    let nesterov = Optimizer::Nesterov {
        momentum,
        weight_decay,
    };
    let adamw = Optimizer::AdamW {
        beta1,
        beta2,
        epsilon,
        weight_decay,
    };
    let update = |rule, moments, norms| Kernel::Update {
        rule,
        parameter: W,
        gradient: W,
        moments,
        norms,
        clip: None,
    };
    let measure = |rule, moments| Kernel::UpdateNorms {
        rule,
        parameter: W,
        gradient: W,
        moments,
        clip: Some((SCALAR, 1.0)),
        norms,
    };
    vec![
        update(nesterov, vec![W], None),
        update(adamw, vec![W, W], None),
        measure(lars, vec![]),
        update(lars, vec![W], Some(norms)),
        measure(lamb, vec![W, W]),
        update(lamb, vec![], Some(norms)),
        average(None),
        average(Some(SCALAR)),
    ]
}

fn average(total: Option<View>) -> Kernel {
    Kernel::Average {
        parameter: W,
        average: W,
        decay: 0.999,
        total,
    }
}

fn update(momentum: f64, clip: Option<(View, f64)>) -> Kernel {
    Kernel::Update {
        rule: Optimizer::Sgd {
            momentum,
            weight_decay: 1e-20,
        },
        parameter: W,
        gradient: W,
        moments: if momentum == 0.0 { vec![] } else { vec![W] },
        norms: None,
        clip,
    }
}

fn fused() -> Vec<Kernel> {
    let relu = Kernel::LeakyReluForward {
        x: Y,
        y: Y,
        negative_slope: 0.0,
    };
    let of = |parts| Kernel::Fused { parts };
    vec![
        of(vec![convolutions()[3].clone(), inference(), relu]),
        of(vec![update(0.9, None), update(0.9, None)]),
        of(vec![average(None), average(None)]),
    ]
}

fn kernels() -> Vec<Kernel> {
    let families: [fn() -> Vec<Kernel>; 18] = [
        contents,
        convolutions,
        pools,
        resamplings,
        batch_norms,
        layer_norms,
        group_norms,
        multiplications,
        slopes_and_softmax,
        pointwise,
        products,
        sequences,
        positions::biased_attention,
        positions::kernels,
        losses,
        updates,
        other_updates,
        fused,
    ];
    families.into_iter().flat_map(|family| family()).collect()
}

#[test]
fn the_key_of_every_kind_is_as_listed() {
    let (kernels, buffers) = (kernels(), buffers());
    let kinds: HashSet<_> = kernels.iter().map(discriminant).collect();
    assert_eq!(kinds.len(), Kernel::KINDS, "a kind is not listed");
    let keys = kernels.iter().map(|kernel| {
        let buffers = &buffers;
        KernelShape { kernel, buffers }.signature()
    });
    let keys: Vec<String> = keys.collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let path = path.join(format!("keys-{}.txt", KernelShape::KEY_VERSION));
    let listed = fs::read_to_string(&path).unwrap_or_default();
    for listed in listed.lines() {
        assert!(keys.iter().any(|key| key == listed), "no longer: {listed}");
    }
    if env::var_os("UPDATE").is_some() {
        fs::write(&path, keys.join("\n") + "\n").unwrap();
        return;
    }
    for key in &keys {
        assert!(listed.lines().any(|listed| listed == key), "new: {key}");
    }
}
