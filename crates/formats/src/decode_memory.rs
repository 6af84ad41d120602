//! The memory that decoding takes, counted for all readers of this process together.
//!
//! What a file asks for is claimed before it is allocated, so that a few kilobytes cannot take all memory of the machine.

use std::fs;
use std::io::Read;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use partita_space::Bytes;

use crate::read_error::ReadError;
use crate::shortage::Shortage;

/// The budgets of the command line and of a run file; 0 where none is set.
static SET: AtomicU64 = AtomicU64::new(0);
static CONFIGURED: AtomicU64 = AtomicU64::new(0);
static CLAIMED: AtomicU64 = AtomicU64::new(0);
/// Bytes that a stream of unknown length is read by at first.
const PIECE_BYTES: u64 = 1 << 16;
/// The default where the system does not say what is free.
const UNKNOWN: u64 = 4 << 30;

/// Sets the budget of this process, which goes before that of a run file (default: half of the memory that is free when
/// it is first needed).
pub fn set_limit(limit: Option<Bytes>) {
    SET.store(limit.map_or(0, |limit| limit.0.max(1)), Ordering::Relaxed);
    configure(None);
}

/// Sets the budget where [`set_limit`] set none.
pub fn configure(limit: Option<Bytes>) {
    CONFIGURED.store(limit.map_or(0, |limit| limit.0.max(1)), Ordering::Relaxed);
}

/// The budget that was set, if one was.
pub fn chosen() -> Option<Bytes> {
    let chosen = [&SET, &CONFIGURED].map(|limit| limit.load(Ordering::Relaxed));
    chosen.into_iter().find(|&limit| limit > 0).map(Bytes)
}

/// The budget of this process.
pub fn limit() -> Bytes {
    static DEFAULT: OnceLock<u64> = OnceLock::new();
    chosen()
        .unwrap_or_else(|| Bytes(*DEFAULT.get_or_init(|| free().map_or(UNKNOWN, |free| free / 2))))
}

/// Memory that programs may take: of the machine, and of a container that limits it.
fn free() -> Option<u64> {
    let memory = partita_files::read_text("/proc/meminfo").ok()?;
    let line = memory
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let of_group = |name: &str| -> Option<u64> {
        let text = partita_files::read_text(format!("/sys/fs/cgroup/memory.{name}")).ok()?;
        text.trim().parse().ok()
    };
    let in_group = of_group("max").map(|max| max.saturating_sub(of_group("current").unwrap_or(0)));
    Some((1024 * kibibytes).min(in_group.unwrap_or(u64::MAX)))
}

/// Memory that a reader takes until this is dropped.
#[derive(Debug)]
pub struct Claim(u64);

/// Claims memory of the budget.
///
/// Errors: `Memory` where the budget has not as much left.
pub fn claim(bytes: u64) -> Result<Claim, ReadError> {
    let mut claim = Claim(0);
    claim.add(bytes)?;
    Ok(claim)
}

/// What nobody has claimed.
pub(crate) fn left() -> u64 {
    let claimed = CLAIMED.load(Ordering::Relaxed);
    limit().0.saturating_sub(claimed)
}

impl Claim {
    /// Claims more.
    ///
    /// Errors: as [`claim`].
    pub fn add(&mut self, bytes: u64) -> Result<(), ReadError> {
        let limit = limit();
        let more = |claimed: u64| claimed.checked_add(bytes).filter(|&sum| sum <= limit.0);
        match CLAIMED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => {
                self.0 += bytes;
                Ok(())
            }
            Err(claimed) => Err(ReadError::Memory(Shortage {
                asked: Bytes(bytes),
                limit,
                claimed: Bytes(claimed),
            })),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Reads a file of this length.
pub(crate) fn read_file(file: &mut fs::File, length: u64) -> Result<(Vec<u8>, Claim), ReadError> {
    let claim = claim(length)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length as usize)?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok((bytes, claim))
}

/// Reads up to `length` bytes; claims them as they come.
pub(crate) fn read_up_to(from: &mut dyn Read, length: u64) -> Result<(Vec<u8>, Claim), ReadError> {
    let mut out: Vec<u8> = Vec::new();
    let mut claimed = claim(0)?;
    while (out.len() as u64) < length {
        let have = out.len() as u64;
        let more = have.max(PIECE_BYTES).min(length - have);
        claimed.add(more)?;
        // While it moves, it is there twice.
        let moving = claim(have)?;
        out.try_reserve_exact(more as usize)?;
        drop(moving);
        if (&mut *from).take(more).read_to_end(&mut out)? < more as usize {
            break;
        }
    }
    Ok((out, claimed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_known_here() {
        assert!(free().is_some_and(|free| free > 1 << 20));
        assert!(limit().0 > 1 << 20);
    }

    #[test]
    fn claims_end_with_their_scope() {
        let most = limit().0;
        let error = claim(u64::MAX).expect_err("more than there is");
        let ReadError::Memory(shortage) = error else {
            panic!("{error:?}");
        };
        assert_eq!(shortage.asked, Bytes(u64::MAX));
        let first = claim(most / 2).expect("a half");
        claim(most / 2 + most / 4).expect_err("the half is claimed");
        drop(first);
        claim(most / 2 + most / 4).expect("the half is free again");
    }

    #[test]
    fn streams_are_read_as_far_as_they_go() {
        let (bytes, _) = read_up_to(&mut std::io::repeat(3), 200_000).expect("room");
        assert_eq!(bytes, [3; 200_000]);
        let mut short = [1u8; 70_000].as_slice();
        let (bytes, _) = read_up_to(&mut short, 1 << 40).expect("room");
        assert_eq!(bytes.len(), 70_000);
    }

    #[test]
    fn a_shortage_says_what_is_enough() {
        let shortage = |asked| Shortage {
            asked: Bytes(asked),
            limit: Bytes(1),
            claimed: Bytes(0),
        };
        assert_eq!(shortage(1).enough(), "1MiB");
        assert_eq!(shortage((5 << 30) + 1).enough(), "6GiB");
    }
}
