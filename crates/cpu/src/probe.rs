//! What the registers of one core deliver: the peak that shares of peak refer to.

use crate::grid::Work;
use crate::simd::{Level, Op, Simd};

/// Independent chains: more than the latency of a multiply-add times the units that do them.
const CHAINS: usize = 12;

/// Does `rounds` of independent multiply-adds in registers and counts them; to be timed.
///
/// Touches no memory. Panics if the processor lacks the level.
pub fn multiply_adds(level: Level, rounds: u64) -> Work {
    assert!(level.available(), "this processor lacks {level:?}");
    let sum = level.run(Chains(rounds));
    std::hint::black_box(sum);
    Work {
        flops: 2 * (CHAINS * level.lanes()) as u64 * rounds,
        bytes: 0,
    }
}

struct Chains(u64);

impl Op for Chains {
    type Out = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        // SAFETY: the features are those of the caller.
        unsafe {
            let (a, b) = (S::splat(0.999), S::splat(std::hint::black_box(1e-3)));
            let mut chains: [S::V; CHAINS] = std::array::from_fn(|i| S::splat(i as f32));
            for _ in 0..self.0 {
                for chain in &mut chains {
                    *chain = S::fma(*chain, a, b);
                }
            }
            chains.iter().fold(0.0, |sum, chain| sum + S::sum(*chain))
        }
    }
}
