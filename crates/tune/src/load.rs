//! Times of reads.

use crate::TuneError;
use crate::barrier::{median_of_slowest, run_ranks};
use partita_oracle::TransferTime;
use partita_space::{Bytes, Rank, Seconds};
use std::io;
use std::time::Instant;

/// Repeats per size.
const REPEATS: usize = 3;

/// Times reads of each size by all ranks at the same time. A read has no host overhead.
///
/// `read(rank, repeat, bytes)` reads this many bytes. Repeats and ranks should read different parts of a file,
/// since the page cache keeps what was read.
/// Errors: a read that fails.
pub fn measure_load(
    ranks: usize,
    sizes: &[Bytes],
    read: &(dyn Fn(Rank, usize, Bytes) -> io::Result<()> + Sync),
) -> Result<Vec<TransferTime>, TuneError> {
    let times = run_ranks("reading", vec![(); ranks.max(1)], |barrier, rank, ()| {
        let mut all = Vec::with_capacity(sizes.len());
        for (index, &bytes) in sizes.iter().enumerate() {
            let mut times = Vec::with_capacity(REPEATS);
            for repeat in 0..REPEATS {
                barrier.wait()?;
                let start = Instant::now();
                read(rank, index * REPEATS + repeat, bytes)
                    .map_err(|source| TuneError::Read { rank, source })?;
                times.push(start.elapsed().as_secs_f64());
            }
            all.push(times);
        }
        Ok(all)
    })?;
    let point = |(index, &bytes): (usize, &Bytes)| {
        let all: Vec<&[f64]> = times.iter().map(|rank| rank[index].as_slice()).collect();
        TransferTime {
            bytes,
            seconds: Seconds(median_of_slowest(&all)),
            host: Seconds(0.0),
        }
    };
    Ok(sizes.iter().enumerate().map(point).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn the_slowest_reader_counts_and_every_repeat_is_new() {
        let reads = AtomicUsize::new(0);
        let read = |rank: Rank, repeat: usize, bytes: Bytes| {
            assert!(repeat < 2 * REPEATS);
            reads.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(bytes.0 * (1 + rank as u64)));
            Ok(())
        };
        let points = measure_load(2, &[Bytes(2), Bytes(10)], &read).unwrap();
        assert_eq!(reads.load(Ordering::Relaxed), 12);
        assert!(points[0].seconds.0 >= 0.004, "{points:?}");
        assert!(points[1].seconds.0 >= 0.020, "{points:?}");
    }

    #[test]
    fn a_failing_read_is_an_error() {
        let read = |rank: Rank, _: usize, _: Bytes| {
            if rank == 1 {
                Err(io::ErrorKind::NotFound.into())
            } else {
                Ok(())
            }
        };
        let error = measure_load(2, &[Bytes(1)], &read).unwrap_err();
        let TuneError::Read { rank: 1, source } = error else {
            panic!("{error}")
        };
        assert_eq!(source.kind(), io::ErrorKind::NotFound);
    }
}
