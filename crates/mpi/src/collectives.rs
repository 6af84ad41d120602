//! Collectives of the MPI library itself.

use crate::call::{Completed, Mpi, Parts, Raw};
use crate::control::sorted_backwards;
use crate::point_to_point::{StartError, buffer};
use partita_program::{
    BufferTransfer, Collective, CollectiveKind, Dtype, Group, Lane, Packets, Staging, TaskId, View,
    Views,
};
use partita_run::{Memory, Packet, PacketPool, RunError};
use partita_space::{Bytes, Rank};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::Arc;

/// Non-blocking collectives of the library, on one communicator for each group specification.
pub(crate) struct LibraryCollectives {
    mpi: Arc<Mpi>,
    rank: Rank,
    groups: HashMap<Group, Members>,
    requests: Vec<Raw>,
    pending: Vec<Pending>,
    finished: Vec<Pending>,
    completed: Vec<Completed>,
    fault: Option<(Pending, String)>,
    pool: PacketPool,
    started: u64,
    bytes: u64,
}

struct Members {
    comm: Raw,
    members: Vec<Rank>,
}

/// A pending collective. The library accesses the vectors until its request has completed.
struct Pending {
    task: TaskId,
    sequence: u32,
    others: Vec<Rank>,
    /// None for `MPI_IN_PLACE`.
    source: Option<PackedViews>,
    target: PackedViews,
}

/// Packed views, one after the other.
struct PackedViews {
    packet: Packet,
    views: Vec<View>,
    counts: Vec<c_int>,
    starts: Vec<c_int>,
    /// One element in place of the packet, of a rank that has nothing to send and nothing to receive.
    token: Option<Box<u64>>,
}

impl LibraryCollectives {
    pub(crate) fn new(mpi: Arc<Mpi>, rank: Rank) -> Self {
        Self {
            mpi,
            rank,
            groups: HashMap::new(),
            requests: Vec::new(),
            pending: Vec::new(),
            finished: Vec::new(),
            completed: Vec::new(),
            fault: None,
            pool: PacketPool::default(),
            started: 0,
            bytes: 0,
        }
    }

    pub(crate) fn add(&mut self, group: Group, comm: Raw, members: Vec<Rank>) {
        self.groups.insert(group, Members { comm, members });
    }

    /// Allocates the packet pool.
    ///
    /// Errors: no memory.
    pub(crate) fn allocate(&mut self, staging: &Staging) -> Result<(), RunError> {
        self.pool.allocate(
            self.rank,
            &Staging {
                exchange: Bytes(0),
                ..*staging
            },
        )
    }

    /// The contents of views, packed one after the other, in a type that the library can sum if it `sums`.
    fn packed(&mut self, memory: &Memory<'_>, views: Views<'_>, sums: bool) -> PackedViews {
        let mut packed = self.blank(memory, views, sums);
        for (view, &start) in packed.views.iter().zip(&packed.starts) {
            let elements = start as usize..start as usize + view.volume();
            packed.packet.pack_part(memory, view, elements);
        }
        packed
    }

    fn blank(&mut self, memory: &Memory<'_>, views: Views<'_>, sums: bool) -> PackedViews {
        let views = views.to_vec();
        let stored = views
            .first()
            .map_or(Dtype::F32, |view| memory.body().buffer(view.buffer).dtype);
        let (mut counts, mut starts, mut end) = (Vec::new(), Vec::new(), 0usize);
        for view in &views {
            counts.push(view.volume() as c_int);
            starts.push(end as c_int);
            end += view.volume();
        }
        let dtype = if sums { stored.arithmetic() } else { stored };
        PackedViews {
            packet: self.pool.blank(dtype, end),
            views,
            counts,
            starts,
            token: None,
        }
    }

    /// Starts a collective; false where the pool lacks packets.
    pub(crate) fn start(
        &mut self,
        task: TaskId,
        collective: &Collective,
        memory: &Memory<'_>,
    ) -> Result<bool, RunError> {
        let packets = Packets::of_library(collective, memory.body());
        let sizes = packets.taken(BufferTransfer::Copied);
        if !self.pool.reserve(Lane::Collective, sizes) {
            return Ok(false);
        }
        let group = self.groups.get(&collective.group());
        let group = group.unwrap_or_else(|| panic!("no communicator for {}", collective.group));
        let (comm, members) = (group.comm, group.members.clone());
        let kind = &collective.kind;
        let sums = kind.is_sum();
        let (source, target) = match kind {
            CollectiveKind::AllReduce { .. } => (None, self.packed(memory, kind.targets(), sums)),
            CollectiveKind::AllGather { .. } | CollectiveKind::ReduceScatter { .. } => {
                let source = self.packed(memory, kind.sources(), sums);
                (Some(source), self.blank(memory, kind.targets(), sums))
            }
            CollectiveKind::AllToAll { .. } => {
                let mut source = self.packed(memory, kind.sources(), sums);
                let mut target = self.blank(memory, kind.targets(), sums);
                let place = members.iter().position(|&member| member == self.rank);
                if let (Some(place), true, true) = (place, source.is_empty(), target.is_empty()) {
                    source.send_token(place);
                    target.send_token(place);
                }
                (Some(source), target)
            }
        };
        let mut pending = Pending {
            task,
            sequence: collective.sequence,
            others: members
                .into_iter()
                .filter(|&member| member != self.rank)
                .collect(),
            source,
            target,
        };
        self.started += 1;
        let sent = pending.source.as_ref().unwrap_or(&pending.target);
        let buffers = &memory.body().buffers;
        self.bytes += sent
            .views
            .iter()
            .map(|view| view.bytes(buffers).0)
            .sum::<u64>();
        let request = self.call(kind, &mut pending, comm);
        let request = request.map_err(|error| self.failed(&pending, memory, error.to_string()))?;
        self.requests.push(request);
        self.pending.push(pending);
        Ok(true)
    }

    fn call(
        &self,
        kind: &CollectiveKind,
        pending: &mut Pending,
        comm: Raw,
    ) -> Result<Raw, StartError> {
        let mpi = &self.mpi;
        let target = pending.target.parts(mpi)?;
        let Some(source) = &mut pending.source else {
            // SAFETY: `pending` is kept, and not read, until its request has completed, or leaked; the
            // elements of its vectors stay in place when it moves.
            let request = unsafe { mpi.iallreduce(target.buffer, comm) };
            return Ok(request?);
        };
        let source = source.parts(mpi)?;
        // SAFETY: as above.
        let request = unsafe {
            match kind {
                CollectiveKind::AllReduce { .. } => panic!("an allreduce works in place"),
                CollectiveKind::AllGather { .. } => mpi.iallgatherv(source.buffer, &target, comm),
                CollectiveKind::ReduceScatter { .. } => {
                    mpi.ireduce_scatter(&source, target.buffer.start, comm)
                }
                CollectiveKind::AllToAll { .. } => mpi.ialltoallv(&source, &target, comm),
            }
        };
        Ok(request?)
    }

    pub(crate) fn advance(&mut self) {
        // SAFETY: completed requests are removed from the list, so those in it are alive.
        let tested = unsafe { self.mpi.test_some(&mut self.requests, &mut self.completed) };
        if let Err(error) = tested {
            // `MPI_Testsome` names no request when it fails as a whole.
            self.requests.swap_remove(0);
            let first = self.pending.swap_remove(0);
            self.fault.get_or_insert((first, error.to_string()));
            return;
        }
        let mut completed = std::mem::take(&mut self.completed);
        for done in sorted_backwards(&mut completed) {
            self.requests.swap_remove(done.index);
            let pending = self.pending.swap_remove(done.index);
            if done.error == 0 {
                self.finished.push(pending);
            } else {
                let reason = self.mpi.error_text(done.error);
                self.fault.get_or_insert((pending, reason));
            }
        }
        self.completed = completed;
    }

    pub(crate) fn poll(
        &mut self,
        memory: &Memory<'_>,
        done: &mut Vec<TaskId>,
    ) -> Result<(), RunError> {
        self.advance();
        if let Some((pending, reason)) = self.fault.take() {
            let error = self.failed(&pending, memory, reason);
            self.pending.push(pending);
            return Err(error);
        }
        for pending in std::mem::take(&mut self.finished) {
            done.push(pending.task);
            let target = pending.target;
            for (view, &start) in target.views.iter().zip(&target.starts) {
                let elements = start as usize..start as usize + view.volume();
                target.packet.unpack_part(memory, view, elements);
            }
            self.pool.put(target.packet);
            if let Some(source) = pending.source {
                self.pool.put(source.packet);
            }
        }
        Ok(())
    }

    fn failed(&self, pending: &Pending, memory: &Memory<'_>, reason: String) -> RunError {
        let task = &memory.body().tasks[pending.task.0 as usize];
        RunError::Message {
            rank: self.rank,
            // A collective does not say with whom it failed.
            peer: pending.others.first().copied().unwrap_or(self.rank),
            work: task.work.name().to_owned(),
            layer: task.origin.layer.clone(),
            task: pending.task.0,
            sequence: pending.sequence,
            reason,
        }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.requests.is_empty() || !self.finished.is_empty()
    }

    /// All other members: the library does not expose which it waits for.
    pub(crate) fn missing(&self, task: TaskId) -> Option<Vec<Rank>> {
        let pending = self.pending.iter().find(|pending| pending.task == task)?;
        Some(pending.others.clone())
    }

    /// Collectives started and bytes sent since the last call.
    pub(crate) fn take_tally(&mut self) -> [u64; 2] {
        [
            std::mem::take(&mut self.started),
            std::mem::take(&mut self.bytes),
        ]
    }
}

impl PackedViews {
    fn is_empty(&self) -> bool {
        self.counts.iter().all(|&count| count == 0)
    }

    /// Gives this rank one element for itself. Open MPI 4.1 does not count an all-to-all on ranks that have no
    /// elements, and then takes the messages of later collectives for those of others
    /// (open-mpi/ompi, pull request 8060).
    fn send_token(&mut self, place: usize) {
        self.counts[place] = 1;
        self.starts[place] = 0;
        self.token = Some(Box::new(0));
    }

    /// Errors: more elements than the library can count.
    fn parts(&mut self, mpi: &Mpi) -> Result<Parts<'_>, StartError> {
        let mut buffer = buffer(mpi, &mut self.packet)?;
        if let Some(token) = &mut self.token {
            buffer.start = (&raw mut **token).cast();
        }
        Ok(Parts {
            buffer,
            counts: &self.counts,
            starts: &self.starts,
        })
    }
}

impl Drop for LibraryCollectives {
    fn drop(&mut self) {
        // MPI may still read and write what has not completed.
        std::mem::forget(std::mem::take(&mut self.pending));
        std::mem::forget(self.fault.take());
    }
}
