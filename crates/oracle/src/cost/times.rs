//! Measured times of messages, collectives and reads by size.

use partita_cluster::TransferTime;
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

impl LinkTimes {
    /// Whether every collective was measured over this many ranks.
    pub fn has_group(&self, members: usize) -> bool {
        let all = [
            &self.allreduce,
            &self.allgather,
            &self.reduce_scatter,
            &self.alltoall,
        ];
        all.iter().all(|times| times.contains_key(&members))
    }

    /// Whether messages between so many ranks and collectives in groups of these sizes were all measured.
    pub fn has_all(&self, ranks: usize, groups: &BTreeSet<usize>) -> bool {
        let mut groups = groups.iter().filter(|&&members| members > 1);
        ranks < 2 || !self.message.is_empty() && groups.all(|&members| self.has_group(members))
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
