//! Peak floating-point rate of one core, measured on registers.

use crate::grid::Work;
use crate::simd::{Level, Op, Simd};

/// Does `rounds` of independent multiply-adds in registers and counts them; to be timed.
///
/// Touches no memory. Panics if the processor lacks the level.
pub fn multiply_adds(level: Level, rounds: u64) -> Work {
    assert!(level.available(), "this processor lacks {level:?}");
    // SAFETY: by the assertion.
    unsafe {
        match level {
            Level::Portable | Level::Avx2 | Level::Avx512 | Level::Avx512Bf16 => {
                in_chains::<12>(level, rounds)
            }
            // Some processors have four units with a latency of four.
            Level::Neon => in_chains::<24>(level, rounds),
        }
    }
}

/// # Safety
/// The processor has the level.
unsafe fn in_chains<const N: usize>(level: Level, rounds: u64) -> Work {
    // SAFETY: guaranteed by the caller.
    let sum = unsafe { level.run(Chains::<N>(rounds)) };
    std::hint::black_box(sum);
    Work {
        flops: 2 * (N * level.lanes()) as u64 * rounds,
        bytes: 0,
    }
}

/// N independent chains: at least the latency of a multiply-add times the units that do them.
struct Chains<const N: usize>(u64);

impl<const N: usize> Op for Chains<N> {
    type Out = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        // SAFETY: the features are those of the caller.
        unsafe {
            let (a, b) = (S::splat(0.999), S::splat(std::hint::black_box(1e-3)));
            let mut chains: [S::V; N] = std::array::from_fn(|i| S::splat(i as f32));
            for _ in 0..self.0 {
                for chain in &mut chains {
                    *chain = S::fma(*chain, a, b);
                }
            }
            chains.iter().fold(0.0, |sum, chain| sum + S::sum(*chain))
        }
    }
}
