//! Measured times of messages, collectives and reads by size.

use partita_cluster::TransferTime;
use partita_program::{Access, Program, Work};
use partita_space::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Times of a collective by number of members.
type TimesByMembers = BTreeMap<usize, Vec<TransferTime>>;

/// Times of messages and collectives by size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkTimes {
    /// Exchanges between two ranks; bytes of one direction.
    pub message: Vec<TransferTime>,
    /// Allreduces by number of members; bytes of one member's view.
    pub allreduce: TimesByMembers,
    /// Allgathers by number of members; bytes of all members' views together.
    pub allgather: TimesByMembers,
    /// Reduce-scatters by number of members; bytes of all shares together. Absent in older files, as the
    /// all-to-alls.
    #[serde(default)]
    pub reduce_scatter: TimesByMembers,
    /// All-to-alls by number of members; bytes of all blocks of one member.
    #[serde(default)]
    pub alltoall: TimesByMembers,
}

/// Up to which sizes messages and collectives are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSizes {
    /// Bytes of a message.
    pub message: Bytes,
    /// Bytes of a collective, as in [`LinkTimes`].
    pub collective: Bytes,
}

/// Sizes up to which is measured for a program: few, since what a larger program needs is measured anew.
const LEVELS: [u64; 4] = [64 << 10, 1 << 20, 16 << 20, 64 << 20];

impl LinkSizes {
    /// As large as any that are measured; those of longer ones follow.
    pub const ALL: Self = Self {
        message: Bytes(16 << 20),
        collective: Bytes(64 << 20),
    };

    /// At least those of a program, as far as they are measured.
    pub fn of(program: &Program) -> Self {
        let (mut message, mut collective) = (0, 0);
        for body in &program.bodies {
            for task in &body.tasks {
                let bytes = |unless: Access| -> u64 {
                    let views = task.accesses().into_iter();
                    let views = views.filter(|(_, access)| *access != unless);
                    views.map(|(view, _)| view.bytes(&body.buffers).0).sum()
                };
                let bytes = bytes(Access::Read).max(bytes(Access::Write));
                match &task.work {
                    Work::Exchange(_) => message = bytes.max(message),
                    Work::Collective(_) => collective = bytes.max(collective),
                    Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {}
                }
            }
        }
        let level = |bytes: u64, most: Bytes| {
            let level = LEVELS.into_iter().find(|level| *level >= bytes);
            Bytes(level.unwrap_or(u64::MAX).min(most.0))
        };
        Self {
            message: level(message, Self::ALL.message),
            collective: level(collective, Self::ALL.collective),
        }
    }
}

/// Whether times are known up to a size. The largest of a group may be a little less, so that its ranks have equal shares.
fn reach(times: &[TransferTime], size: Bytes) -> bool {
    let last = times.last();
    last.is_some_and(|point| 2 * point.bytes.0 > size.0)
}

impl LinkTimes {
    /// Whether messages were measured up to this size.
    pub fn has_messages(&self, sizes: LinkSizes) -> bool {
        reach(&self.message, sizes.message)
    }

    /// Whether every collective was measured over this many ranks, up to this size.
    pub fn has_group(&self, members: usize, sizes: LinkSizes) -> bool {
        let all = [
            &self.allreduce,
            &self.allgather,
            &self.reduce_scatter,
            &self.alltoall,
        ];
        let has = |times: &TimesByMembers| {
            let times = times.get(&members);
            times.is_some_and(|times| reach(times, sizes.collective))
        };
        all.into_iter().all(has)
    }

    /// Whether messages between this many ranks and collectives in groups of these sizes were all measured up to these
    /// sizes.
    pub fn has_all(&self, ranks: usize, groups: &BTreeSet<usize>, sizes: LinkSizes) -> bool {
        let mut groups = groups.iter().filter(|&&members| members > 1);
        ranks < 2
            || self.has_messages(sizes) && groups.all(|&members| self.has_group(members, sizes))
    }

    /// Times of all collectives.
    pub fn collectives(&self) -> impl Iterator<Item = &Vec<TransferTime>> + Clone {
        let groups = [
            &self.allreduce,
            &self.allgather,
            &self.reduce_scatter,
            &self.alltoall,
        ];
        groups.into_iter().flat_map(BTreeMap::values)
    }

    /// Adds the times of `newer`, which replace older ones.
    pub fn merge(&mut self, newer: &Self) {
        if !newer.message.is_empty() {
            self.message.clone_from(&newer.message);
        }
        let merge = |own: &mut TimesByMembers, new: &TimesByMembers| {
            own.extend(
                new.iter()
                    .map(|(&members, points)| (members, points.clone())),
            );
        };
        merge(&mut self.allreduce, &newer.allreduce);
        merge(&mut self.allgather, &newer.allgather);
        merge(&mut self.reduce_scatter, &newer.reduce_scatter);
        merge(&mut self.alltoall, &newer.alltoall);
    }
}

/// Host overhead per byte, over all points together.
///
/// `bytes_per_byte` is how many bytes a rank copies for each byte of a point: 2 for an exchange, which is
/// packed and unpacked, 1 for a collective.
pub fn host_seconds_per_byte(points: &[TransferTime], bytes_per_byte: f64) -> f64 {
    let bytes: f64 = points.iter().map(|point| point.bytes.0 as f64).sum();
    let host: f64 = points.iter().map(|point| point.host.0).sum();
    if bytes > 0.0 {
        host / (bytes * bytes_per_byte)
    } else {
        0.0
    }
}
