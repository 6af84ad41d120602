//! What was measured of messages, collectives and reads, by size.

use partita_space::{Bytes, Seconds};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Times of a collective by size, by number of members.
type Groups = BTreeMap<usize, Vec<Point>>;

/// The time of a size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The size.
    pub bytes: Bytes,
    /// Median over repeats of the slowest rank's time, from a common start to completion.
    pub seconds: Seconds,
    /// Part of it in which the rank's own thread worked and so could run no kernel.
    pub host: Seconds,
}

/// Times of what ranks say to each other, by size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkTimes {
    /// Messages between two ranks that send as much to each other; bytes of one of the two.
    pub message: Vec<Point>,
    /// Allreduces by number of members; bytes of one member's view.
    pub allreduce: Groups,
    /// Allgathers by number of members; bytes of all members' views together.
    pub allgather: Groups,
    /// Reduce-scatters by number of members; bytes of all shares together. Files of before there were
    /// any lack these and the next.
    #[serde(default)]
    pub reduce_scatter: Groups,
    /// All-to-alls by number of members; bytes of all blocks of one member.
    #[serde(default)]
    pub alltoall: Groups,
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

    /// Whether nothing is left to measure of messages between so many ranks, and of collectives in these
    /// groups.
    pub fn has_all(&self, ranks: usize, groups: &BTreeSet<usize>) -> bool {
        let mut groups = groups.iter().filter(|&&members| members > 1);
        ranks < 2 || !self.message.is_empty() && groups.all(|&members| self.has_group(members))
    }

    /// The points of all collectives.
    pub fn of_groups(&self) -> impl Iterator<Item = &Vec<Point>> + Clone {
        let groups = [
            &self.allreduce,
            &self.allgather,
            &self.reduce_scatter,
            &self.alltoall,
        ];
        groups.into_iter().flat_map(BTreeMap::values)
    }

    /// Takes in everything of `newer`.
    pub fn merge(&mut self, newer: &Self) {
        if !newer.message.is_empty() {
            self.message.clone_from(&newer.message);
        }
        let merge = |own: &mut Groups, new: &Groups| {
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

/// Seconds of the rank's thread for each byte, over all points together.
///
/// `bytes_per_byte` is how many bytes pass through the thread for each byte of a point: 2 for a
/// message, which is packed at one end and unpacked at the other, 1 for a collective.
pub fn host_seconds_per_byte(points: &[Point], bytes_per_byte: f64) -> f64 {
    let bytes: f64 = points.iter().map(|point| point.bytes.0 as f64).sum();
    let host: f64 = points.iter().map(|point| point.host.0).sum();
    if bytes > 0.0 {
        host / (bytes * bytes_per_byte)
    } else {
        0.0
    }
}
