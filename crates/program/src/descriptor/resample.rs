//! Upsampling, padding and means over unequal windows.

use super::*;

/// A multiplication and an addition per tap, or one operation where all weights are 1.
fn flops(outputs: &View, maps: &[Resampling; 3]) -> u128 {
    let [n, d, h, w, c] = outputs.extent;
    let is_copy = maps.iter().all(|map| map.rule.is_copy());
    let each = if is_copy { 1 } else { 2 };
    let taps = [d, h, w].into_iter().zip(maps);
    taps.fold(product(&[n, c, each]), |all, (outputs, map)| {
        let count = if map.denominator == 0 {
            0
        } else {
            map.tap_count(outputs)
        };
        all.saturating_mul(count)
    })
}

pub(super) fn describe(kernel: &Kernel) -> Descriptor<'_> {
    match kernel {
        Kernel::ResampleForward { x, y, maps } => {
            let of_x = Extents::Resampled {
                name: "y",
                of: y,
                maps,
            };
            let operands = [linear("x", x).extents(of_x), write("y", y)];
            Descriptor::new("resample_forward", flops(y, maps), operands)
                .constant(Constant::Maps(maps))
        }
        Kernel::ResampleBackward {
            dy,
            dx,
            maps,
            accumulate,
        } => {
            let of_dx = Extents::Resampled {
                name: "dy",
                of: dy,
                maps,
            };
            let operands = [
                linear("dy", dy),
                result("dx", dx, *accumulate).extents(of_dx),
            ];
            Descriptor::new("resample_backward", flops(dy, maps), operands)
                .constant(Constant::Maps(maps))
                .accumulates(*accumulate)
        }
        other => panic!("{other:?} is described elsewhere"),
    }
}
