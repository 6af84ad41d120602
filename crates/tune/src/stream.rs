//! Memory bandwidth.

use crate::TuneError;
use crate::barrier::{median_of_slowest, run_ranks, zeros};
use partita_space::{Bytes, BytesPerSecond};
use std::hint::black_box;
use std::time::Instant;

/// Repeats after a warm-up.
const REPEATS: usize = 6;

/// Bandwidth of each rank, bytes read plus written, while all ranks copy memory.
///
/// Each rank copies `bytes` at a time, which must be much more than the caches hold.
/// Errors: a thread that cannot be started.
pub fn measure_memory(ranks: usize, bytes: Bytes) -> Result<BytesPerSecond, TuneError> {
    let words = (bytes.0 / 8) as usize;
    let times = run_ranks("memory", vec![(); ranks.max(1)], |barrier, rank, ()| {
        let mut source = zeros("copies of memory", rank, words)?;
        source.fill(1);
        let mut target = zeros("copies of memory", rank, words)?;
        let mut times = Vec::with_capacity(REPEATS);
        for turn in 0..=REPEATS {
            barrier.wait()?;
            let start = Instant::now();
            target.copy_from_slice(black_box(&source));
            black_box(&mut target);
            let seconds = start.elapsed().as_secs_f64();
            if turn > 0 {
                times.push(seconds);
            }
        }
        Ok(times)
    })?;
    let all: Vec<&[f64]> = times.iter().map(Vec::as_slice).collect();
    let seconds = median_of_slowest(&all).max(1e-9);
    Ok(BytesPerSecond(2.0 * 8.0 * words as f64 / seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_lies_between_that_of_a_disk_and_that_of_a_cache() {
        let rate = measure_memory(2, Bytes(8 << 20)).unwrap().0;
        assert!((1e8..1e13).contains(&rate), "{rate}");
    }
}
