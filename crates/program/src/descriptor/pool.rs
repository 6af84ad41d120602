//! Poolings.

use super::*;
use crate::PoolKind;

fn flops(outputs: &View, taps: &Taps) -> u128 {
    each(outputs, 1).saturating_mul(product(&taps.kernel))
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
            let x = match is_linear(*kind) {
                true => linear("x", x),
                false => read("x", x),
            };
            let operands = [x.extents(pooled(*kind, "y", y, taps, shift)), write("y", y)];
            Descriptor::new("pool_forward", flops(y, taps), operands)
                .window(window(taps, shift, y))
                .constant(kind)
                .constant(taps)
                .constant(shift)
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
            Descriptor::new("pool_backward", flops(dy, taps), [])
                .and(x.as_ref().map(|x| read("x", x).like("dx", dx)))
                .and([
                    linear("dy", dy),
                    result("dx", dx, *accumulate).extents(of_dx),
                ])
                .require(x.is_some() || !needs_x, || "a maximum needs x".to_owned())
                .require(x.is_none() || needs_x, || {
                    "x is given, but an average does not read it".to_owned()
                })
                .window(window(taps, shift, dy))
                .constant(kind)
                .constant(taps)
                .constant(shift)
                .constant(accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}

fn is_linear(kind: PoolKind) -> bool {
    match kind {
        PoolKind::Max => false,
        PoolKind::AverageAll | PoolKind::AverageInside => true,
    }
}

/// Whether an output without a tap inside is undefined depends on the kind.
fn pooled<'k>(
    kind: PoolKind,
    name: &'static str,
    of: &'k View,
    taps: &'k Taps,
    shift: &'k [i64; 3],
) -> Extents<'k> {
    let needs_tap = match kind {
        PoolKind::AverageAll => false,
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
