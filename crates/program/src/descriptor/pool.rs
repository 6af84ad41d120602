//! Poolings.

use super::*;
use crate::PoolKind;

/// One per tap, and two for an L2 norm, which squares and adds.
fn flops(kind: PoolKind, outputs: &View, taps: &Taps) -> u128 {
    let of_tap = match kind {
        PoolKind::Max | PoolKind::AverageAll | PoolKind::AverageInside => 1,
        PoolKind::L2 => 2,
    };
    each(outputs, of_tap).saturating_mul(product(&taps.kernel))
}

/// The gradient of an L2 norm recomputes the norm.
fn backward_flops(kind: PoolKind, outputs: &View, taps: &Taps) -> u128 {
    let passes = match kind {
        PoolKind::Max | PoolKind::AverageAll | PoolKind::AverageInside => 1,
        PoolKind::L2 => 2,
    };
    flops(kind, outputs, taps).saturating_mul(passes)
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::PoolForward {
            kind,
            x,
            y,
            taps,
            shift,
        } => {
            let x = if is_linear(*kind) {
                linear("x", x)
            } else {
                read("x", x)
            };
            let operands = [x.extents(pooled(*kind, "y", y, taps, shift)), write("y", y)];
            Descriptor::new("pool_forward", flops(*kind, y, taps), operands)
                .window(window(taps, shift, y))
                .constant(Constant::Word("kind", kind.name()))
                .constant(Constant::Taps(taps))
                .constant(Constant::Offsets("shift", shift))
        }
        Kernel::PoolBackward {
            kind,
            x,
            dy,
            dx,
            taps,
            shift,
            accumulate,
        } => {
            let of_dx = pooled(*kind, "dy", dy, taps, shift);
            let needs_x = !is_linear(*kind);
            Descriptor::new("pool_backward", backward_flops(*kind, dy, taps), [])
                .and(x.as_ref().map(|x| read("x", x).like("dx", dx)))
                .and([
                    linear("dy", dy),
                    result("dx", dx, *accumulate).extents(of_dx),
                ])
                .require(x.is_some() || !needs_x, || {
                    "a maximum or a norm needs x".to_owned()
                })
                .require(x.is_none() || needs_x, || {
                    "x is given, but an average does not read it".to_owned()
                })
                .window(window(taps, shift, dy))
                .constant(Constant::Word("kind", kind.name()))
                .constant(Constant::Taps(taps))
                .constant(Constant::Offsets("shift", shift))
                .accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn is_linear(kind: PoolKind) -> bool {
    match kind {
        PoolKind::Max | PoolKind::L2 => false,
        PoolKind::AverageAll | PoolKind::AverageInside => true,
    }
}

/// An output whose window has no tap inside the input is undefined for some kinds.
fn pooled<'k>(
    kind: PoolKind,
    name: &'static str,
    of: &'k View,
    taps: &'k Taps,
    shift: &'k [i64; 3],
) -> Extents<'k> {
    let needs_tap = match kind {
        PoolKind::AverageAll | PoolKind::L2 => false,
        PoolKind::Max | PoolKind::AverageInside => true,
    };
    Extents::Pooled {
        name,
        of,
        taps,
        shift,
        needs_tap,
    }
}

fn window<'k>(taps: &'k Taps, shift: &[i64; 3], outputs: &View) -> Window<'k> {
    Window {
        taps,
        groups: 1,
        shift: *shift,
        outputs: outputs.extent,
    }
}
