//! The event loop of the simulation.

use super::SimulateError;
use super::category::Category;
use super::costed_program::CostedProgram;
use super::network::{Instance, Moved, Network};
use super::task_cost::{RankProgram, TaskCost};
use crate::cost::{KernelCost, Progress};
use partita_program::{Lane, TaskId};
use partita_run::{Driver, Event, Trace};
use partita_space::Seconds;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Start, end and causes of an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskRecord {
    /// NaN until it has started.
    pub start: f64,
    pub end: f64,
    /// The instance whose completion made it ready; none at the start of the simulation.
    pub trigger: Option<u32>,
    /// The instance that started last of those it needs: itself, or the task of a peer or member.
    /// Its completion counts from that start.
    pub last_start: u32,
    /// The latency in the time since then.
    pub latency: f64,
    /// Of a collective that waited for another of its group: a participant's instance of that one, and when
    /// it ended. The completion counts from there.
    pub queued_behind: Option<(u32, f64)>,
    /// Peers that have not started yet.
    missing_peers: u32,
    /// The kernel at whose end its completion was noticed, if that is later than its own end.
    pub deferred_by: Option<u32>,
    /// Version of the completion event that is valid.
    version: u32,
}

/// Starts and ends of all instances.
pub(super) struct Timeline {
    pub records: Vec<TaskRecord>,
    /// First instance of each participant, and the end of all.
    pub base: Vec<Instance>,
    pub traces: Vec<Vec<Trace>>,
    /// Delays of kernels by the host overhead of messages and collectives.
    pub stalls: HashMap<Instance, Vec<(Category, f64)>>,
}

impl Timeline {
    pub fn makespan(&self) -> f64 {
        self.records
            .iter()
            .map(|record| record.end)
            .fold(0.0, f64::max)
    }

    /// Participant, step and task of an instance.
    pub fn locate(&self, program: &CostedProgram<'_>, instance: Instance) -> (usize, usize, usize) {
        let tasks = |at: usize| program.participants[at].costs.len();
        let participant = self.base.partition_point(|&base| base <= instance) - 1;
        let within = instance - self.base[participant];
        (
            participant,
            within / tasks(participant),
            within % tasks(participant),
        )
    }
}

/// The completion event of an instance, stale unless `version` is that of the instance's record.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Completion {
    time: f64,
    instance: Instance,
    participant: usize,
    task: usize,
    version: u32,
}

impl Eq for Completion {}

impl Ord for Completion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.time
            .total_cmp(&other.time)
            .then(self.instance.cmp(&other.instance))
            .then(self.version.cmp(&other.version))
    }
}

impl PartialOrd for Completion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A running kernel.
#[derive(Clone, Copy)]
struct Running {
    instance: Instance,
    task: usize,
    end: f64,
    cost: KernelCost,
    /// As in [`TaskCost::Local`].
    traffic: f64,
    /// As how many kernels of its own kind those of other ranks slow it down.
    others: f64,
}

/// Host overhead of a communication that started while no kernel ran. Kernels that start before `end`
/// are delayed by what is left of it.
struct Overhead {
    start: f64,
    end: f64,
    seconds: f64,
    category: Category,
}

/// The simulated state of a participant.
struct RankState<'p> {
    driver: Driver<'p>,
    step: usize,
    running: Option<Running>,
    pending_overheads: Vec<Overhead>,
    /// Completions during the running kernel, to be noticed at its end.
    deferred: Vec<Completion>,
    traces: Vec<Trace>,
}

/// A collective that all of its members have started.
struct Gathering {
    rendezvous: usize,
    latency: f64,
    members: Vec<Instance>,
    /// The one that started last.
    last: Instance,
}

pub(super) struct Engine<'s, 'p> {
    program: &'s CostedProgram<'p>,
    steps: usize,
    states: Vec<RankState<'p>>,
    heap: BinaryHeap<Reverse<Completion>>,
    /// By instance, the instances that wait for its start, with delay and latency of their messages.
    waiters: HashMap<Instance, Vec<(Instance, f64, f64)>>,
    /// Instances that have arrived at a rendezvous, by step and rendezvous.
    arrived: HashMap<(usize, usize), Vec<Instance>>,
    network: Network<'s>,
    /// By group, the collective that runs and those that wait for it.
    queues: HashMap<usize, VecDeque<Gathering>>,
    /// Time of the last event.
    now: f64,
    timeline: Timeline,
}

impl<'s, 'p> Engine<'s, 'p> {
    pub fn new(program: &'s CostedProgram<'p>, steps: usize) -> Self {
        let mut base = Vec::new();
        let mut next = 0;
        for program in &program.participants {
            base.push(next);
            next += program.costs.len() * steps;
        }
        let unstarted = TaskRecord {
            start: f64::NAN,
            end: 0.0,
            trigger: None,
            last_start: 0,
            latency: 0.0,
            queued_behind: None,
            missing_peers: 0,
            deferred_by: None,
            version: 0,
        };
        let state = |program: &RankProgram<'p>| RankState {
            driver: Driver::new(program.body),
            step: 0,
            running: None,
            pending_overheads: Vec::new(),
            deferred: Vec::new(),
            traces: (0..steps).map(|step| empty_trace(program, step)).collect(),
        };
        Self {
            program,
            steps,
            states: program.participants.iter().map(state).collect(),
            heap: BinaryHeap::new(),
            waiters: HashMap::new(),
            arrived: HashMap::new(),
            network: Network::default(),
            queues: HashMap::new(),
            now: 0.0,
            timeline: Timeline {
                records: vec![unstarted; next],
                base,
                traces: Vec::new(),
                stalls: HashMap::new(),
            },
        }
    }

    pub fn run(mut self) -> Result<Timeline, SimulateError> {
        for participant in 0..self.states.len() {
            self.start_ready(participant, 0.0, None);
        }
        while let Some(completion) = self.next_event() {
            if !self.is_current(&completion) {
                continue;
            }
            self.network.end(completion.instance);
            self.leave_queue(completion);
            if !self.defer(completion) {
                self.complete(completion);
            }
        }
        for (state, program) in self.states.iter().zip(&self.program.participants) {
            if state.step < self.steps && !program.costs.is_empty() {
                return Err(SimulateError::Deadlock {
                    rank: program.participant.rank,
                    step: state.step,
                    open: state.driver.open(),
                });
            }
        }
        self.timeline.traces = self.states.into_iter().map(|state| state.traces).collect();
        Ok(self.timeline)
    }

    /// The next event; before time moves on, the network is shared out among the flows of this moment.
    fn next_event(&mut self) -> Option<Completion> {
        let is_later = |Reverse(next): &Reverse<Completion>| next.time > self.now;
        if self.network.is_stale() && self.heap.peek().is_none_or(is_later) {
            for Moved { instance, end } in self.network.share_out(self.now) {
                let (participant, _, task) = self.timeline.locate(self.program, instance);
                self.move_completion(participant, task, instance, end);
            }
        }
        let Reverse(next) = self.heap.pop()?;
        self.now = next.time;
        Some(next)
    }

    fn instance(&self, participant: usize, task: usize) -> Instance {
        self.instance_in(participant, self.states[participant].step, task)
    }

    fn instance_in(&self, participant: usize, step: usize, task: usize) -> Instance {
        let tasks = self.program.participants[participant].costs.len();
        self.timeline.base[participant] + step * tasks + task
    }

    /// False for a stale event: the end of its kernel has moved since.
    fn is_current(&self, completion: &Completion) -> bool {
        self.timeline.records[completion.instance].version == completion.version
    }

    /// Whether the completion is put off to the end of the running kernel, since the rank polls between
    /// kernels only.
    fn defer(&mut self, completion: Completion) -> bool {
        match self.program.progress {
            Progress::Polled => {}
            Progress::Queued => return false,
        }
        let record = &mut self.timeline.records[completion.instance];
        let state = &mut self.states[completion.participant];
        match state.running {
            Some(running)
                if running.instance != completion.instance
                    && running.end > completion.time
                    && record.deferred_by.is_none() =>
            {
                record.deferred_by = Some(running.instance as u32);
                state.deferred.push(completion);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Ends the running kernel of a participant, and delivers what was deferred to its end.
    fn end_kernel(&mut self, participant: usize, running: Running, now: f64) {
        self.states[participant].running = None;
        for completion in std::mem::take(&mut self.states[participant].deferred) {
            self.timeline.records[completion.instance].end = now;
            self.heap.push(Reverse(Completion {
                time: now,
                ..completion
            }));
        }
        self.rescale_co_located(participant, (running.traffic, -1.0), now);
    }

    /// The participants on the node of one, if their kernels slow each other down.
    fn co_located(&self, participant: usize) -> &'s [usize] {
        let program = self.program;
        let node = program.participants[participant].node;
        program.co_located.get(node).map_or(&[], Vec::as_slice)
    }

    /// As how many of its own kind the other kernels of its node slow one with this traffic down.
    fn others(&self, participant: usize, traffic: f64) -> f64 {
        let others = self.co_located(participant).iter();
        let others = others.filter(|&&other| other != participant);
        let running = others.filter_map(|&other| self.states[other].running);
        let contention = self.program.contention;
        running
            .map(|other| contention.share(traffic, other.traffic))
            .sum()
    }

    /// Rescales the remaining time of the other kernels of a node after one with this traffic has started, with a sign
    /// of 1, or ended, with -1.
    fn rescale_co_located(&mut self, participant: usize, (traffic, sign): (f64, f64), now: f64) {
        let co_located = self.co_located(participant);
        for &other in co_located {
            let Some(before) = self.states[other].running else {
                continue;
            };
            if other == participant {
                continue;
            }
            let share = self.program.contention.share(before.traffic, traffic);
            let after = Running {
                others: before.others + sign * share,
                ..before
            };
            self.states[other].running = Some(after);
            let seconds = |running: Running| running.cost.beside(running.others, co_located.len());
            let (before, longer) = (seconds(before).0, seconds(after).0);
            if after.end > now && before > 0.0 && longer != before {
                let end = now + (after.end - now) * longer / before;
                self.reschedule(other, after, end);
            }
        }
    }

    fn reschedule(&mut self, participant: usize, running: Running, end: f64) {
        let moved = Running { end, ..running };
        self.states[participant].running = Some(moved);
        self.move_completion(participant, moved.task, moved.instance, end);
    }

    /// Replaces the completion of an instance by one at another time.
    fn move_completion(&mut self, participant: usize, task: usize, instance: Instance, end: f64) {
        let record = &mut self.timeline.records[instance];
        record.end = end;
        record.version += 1;
        let version = record.version;
        self.heap.push(Reverse(Completion {
            time: end,
            instance,
            participant,
            task,
            version,
        }));
    }

    fn complete(&mut self, completion: Completion) {
        let Completion {
            time,
            instance,
            participant,
            task,
            ..
        } = completion;
        let record = &mut self.timeline.records[instance];
        // Events that were put off to later than this become stale, too.
        record.version += 1;
        let start = record.start;
        let steps = self.steps;
        let running = self.states[participant].running;
        if let Some(running) = running.filter(|running| running.instance == instance) {
            self.end_kernel(participant, running, time);
        }
        let state = &mut self.states[participant];
        let id = TaskId(task as u32);
        state.driver.complete(id);
        state.traces[state.step].events.push(Event {
            task: id,
            start: Seconds(start),
            end: Seconds(time),
        });
        if state.driver.is_finished() {
            state.step += 1;
            state.driver.reset();
        }
        if state.step < steps {
            self.start_ready(participant, time, Some(instance as u32));
        }
    }

    fn start_ready(&mut self, participant: usize, now: f64, trigger: Option<u32>) {
        while let Some(TaskId(task)) = self.states[participant].driver.next_ready() {
            let instance = self.instance(participant, task as usize);
            let record = &mut self.timeline.records[instance];
            record.start = now;
            record.end = now;
            record.trigger = trigger;
            record.last_start = instance as u32;
            self.start(participant, task as usize, instance, now);
        }
    }

    fn start(&mut self, participant: usize, task: usize, instance: Instance, now: f64) {
        let program = self.program;
        match &program.participants[participant].costs[task] {
            TaskCost::Local { cost, traffic } => {
                self.start_local((participant, task), instance, *cost, *traffic);
            }
            TaskCost::Fetch { seconds, .. } => {
                self.arrive(instance, now + seconds, instance, 0.0);
                self.schedule_completion(instance, now);
            }
            TaskCost::Exchange { peers, .. } => {
                let step = self.states[participant].step;
                for peer in peers {
                    let other = self.instance_in(peer.participant, step, peer.task);
                    let has_come = !self.timeline.records[other].start.is_nan();
                    if other == instance || has_come || !peer.is_awaited {
                        self.arrive(instance, now + peer.delay, instance, peer.latency);
                    } else {
                        self.timeline.records[instance].missing_peers += 1;
                        let waiting = (instance, peer.delay, peer.latency);
                        self.waiters.entry(other).or_default().push(waiting);
                    }
                }
                if self.timeline.records[instance].missing_peers == 0 {
                    self.schedule_completion(instance, now);
                }
                for (waiter, delay, latency) in self.waiters.remove(&instance).unwrap_or_default() {
                    self.arrive(waiter, now + delay, instance, latency);
                    self.timeline.records[waiter].missing_peers -= 1;
                    if self.timeline.records[waiter].missing_peers == 0 {
                        self.schedule_completion(waiter, now);
                    }
                }
            }
            TaskCost::Collective {
                rendezvous,
                latency,
                ..
            } => {
                let key = (self.states[participant].step, *rendezvous);
                let present = self.arrived.entry(key).or_default();
                present.push(instance);
                if present.len() < program.rendezvous[*rendezvous].participants {
                    return;
                }
                let members = self.arrived.remove(&key).unwrap_or_default();
                self.enqueue(Gathering {
                    rendezvous: *rendezvous,
                    latency: *latency,
                    members,
                    last: instance,
                });
            }
        }
    }

    /// A collective that all members have started begins, if its group is free or runs all at once.
    fn enqueue(&mut self, gathering: Gathering) {
        match self.program.progress {
            Progress::Polled => self.begin(&gathering),
            Progress::Queued => {
                let group = self.program.rendezvous[gathering.rendezvous].group;
                let mut queue = self.queues.remove(&group).unwrap_or_default();
                if queue.is_empty() {
                    self.begin(&gathering);
                }
                queue.push_back(gathering);
                self.queues.insert(group, queue);
            }
        }
    }

    /// After the end of a collective, the next of its group begins.
    fn leave_queue(&mut self, completion: Completion) {
        let program = self.program;
        let TaskCost::Collective { rendezvous, .. } =
            &program.participants[completion.participant].costs[completion.task]
        else {
            return;
        };
        let group = program.rendezvous[*rendezvous].group;
        let Some(mut queue) = self.queues.remove(&group) else {
            return;
        };
        // Its members end together; the first of them is looked at.
        let is_first = |first: &Gathering| first.members.contains(&completion.instance);
        if queue.front().is_some_and(is_first) {
            queue.pop_front();
            if let Some(next) = queue.front() {
                let behind = Some((completion.instance as u32, completion.time));
                for &member in &next.members {
                    self.timeline.records[member].queued_behind = behind;
                }
                self.begin(next);
            }
        }
        self.queues.insert(group, queue);
    }

    fn begin(&mut self, gathering: &Gathering) {
        let rendezvous = &self.program.rendezvous[gathering.rendezvous];
        for &member in &gathering.members {
            let end = self.now + rendezvous.seconds;
            self.arrive(member, end, gathering.last, gathering.latency);
            self.schedule_completion(member, self.now);
        }
        let members = gathering.members.clone();
        self.network
            .begin(&rendezvous.loads, members, self.now, rendezvous.seconds);
    }

    /// The messages between an instance and `last_start`, which has just started, arrive at `time`.
    fn arrive(&mut self, instance: Instance, time: f64, last_start: Instance, latency: f64) {
        let record = &mut self.timeline.records[instance];
        if time >= record.end {
            record.end = time;
            record.last_start = last_start as u32;
            record.latency = latency;
        }
    }

    /// Queues the completion of a communication whose end is known, and charges its host overhead.
    fn schedule_completion(&mut self, instance: Instance, now: f64) {
        let (participant, _, task) = self.timeline.locate(self.program, instance);
        let time = self.timeline.records[instance].end;
        self.heap.push(Reverse(Completion {
            time,
            instance,
            participant,
            task,
            version: 0,
        }));
        let program = &self.program.participants[participant];
        let seconds = match &program.costs[task] {
            TaskCost::Local { .. } => 0.0,
            TaskCost::Fetch { loads, .. } => {
                self.network.begin(loads, vec![instance], now, time - now);
                0.0
            }
            TaskCost::Exchange { host, loads, .. } => {
                self.network.begin(loads, vec![instance], now, time - now);
                *host
            }
            TaskCost::Collective { host, .. } => *host,
        };
        if seconds == 0.0 {
            return;
        }
        let category = Category::of(&program.body.tasks[task]);
        match self.states[participant].running {
            // A kernel that ends now is not delayed, even if its completion event is still queued.
            Some(running) if running.end > now => {
                self.delay_kernel(participant, running, seconds, category);
            }
            Some(_) | None => self.states[participant].pending_overheads.push(Overhead {
                start: now,
                end: time,
                seconds,
                category,
            }),
        }
    }

    fn delay_kernel(
        &mut self,
        participant: usize,
        running: Running,
        seconds: f64,
        category: Category,
    ) {
        self.record_stall(running.instance, category, seconds);
        self.reschedule(participant, running, running.end + seconds);
    }

    fn record_stall(&mut self, instance: Instance, category: Category, seconds: f64) {
        self.timeline
            .stalls
            .entry(instance)
            .or_default()
            .push((category, seconds));
    }

    fn start_local(
        &mut self,
        (participant, task): (usize, usize),
        instance: Instance,
        cost: KernelCost,
        traffic: f64,
    ) {
        let now = self.timeline.records[instance].start;
        let program = &self.program.participants[participant];
        let is_kernel = match program.body.tasks[task].work.lane() {
            Lane::Compute => true,
            Lane::Exchange | Lane::Collective | Lane::Io => false,
        };
        let mut end = now + cost.together.0;
        if is_kernel {
            let others = self.others(participant, traffic);
            let co_located = self.co_located(participant);
            if !co_located.is_empty() {
                end = now + cost.beside(others, co_located.len()).0;
            }
            for overhead in std::mem::take(&mut self.states[participant].pending_overheads) {
                if overhead.end <= now {
                    continue;
                }
                let left = (overhead.end - now) / (overhead.end - overhead.start);
                end += overhead.seconds * left;
                self.record_stall(instance, overhead.category, overhead.seconds * left);
            }
            self.states[participant].running = Some(Running {
                instance,
                task,
                end,
                cost,
                traffic,
                others,
            });
            self.rescale_co_located(participant, (traffic, 1.0), now);
        }
        self.timeline.records[instance].end = end;
        self.heap.push(Reverse(Completion {
            time: end,
            instance,
            participant,
            task,
            version: 0,
        }));
    }
}

fn empty_trace(program: &RankProgram<'_>, step: usize) -> Trace {
    Trace {
        rank: program.participant.rank,
        step: step as u64,
        events: Vec::with_capacity(program.costs.len()),
    }
}
