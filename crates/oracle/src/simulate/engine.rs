//! The event loop: what happens when.

use super::SimulateError;
use super::path::Category;
use super::schedule::{Duty, Player, Schedule};
use crate::cost::KernelCost;
use partita_program::{Lane, TaskId};
use partita_run::{Driver, Event, Trace};
use partita_space::Seconds;
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

/// A task of a participant in a step: `base[participant] + step * tasks + task`.
pub(super) type Instance = usize;

/// What the simulation knows of an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// NaN until it has started.
    pub start: f64,
    pub end: f64,
    /// The instance whose completion let it start; none at the beginning.
    pub trigger: Option<u32>,
    /// The instance whose start was the last one that it waited for: its own, a peer's, a member's.
    pub decider: u32,
    /// Part of the time since then that is latency.
    pub latency: f64,
    /// Peers that have not started.
    waits: u32,
    /// The kernel at whose end it was delivered, where that was later than its own end.
    pub held_by: Option<u32>,
    /// Of the completion that stands.
    version: u32,
}

/// All that happened.
pub(super) struct Played {
    pub records: Vec<Record>,
    /// First instance of each participant, and the end of all.
    pub base: Vec<Instance>,
    pub traces: Vec<Vec<Trace>>,
    /// Seconds by which messages and collectives held a kernel up.
    pub stalls: HashMap<Instance, Vec<(Category, f64)>>,
}

impl Played {
    pub fn makespan(&self) -> f64 {
        self.records
            .iter()
            .map(|record| record.end)
            .fold(0.0, f64::max)
    }

    /// Participant, step and task of an instance.
    pub fn locate(&self, schedule: &Schedule<'_>, instance: Instance) -> (usize, usize, usize) {
        let tasks = |at: usize| schedule.participants[at].duties.len();
        let participant = self.base.partition_point(|&base| base <= instance) - 1;
        let within = instance - self.base[participant];
        (
            participant,
            within / tasks(participant),
            within % tasks(participant),
        )
    }
}

/// The completion of an instance; `version` tells whether it still stands.
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

/// A kernel under way.
#[derive(Clone, Copy)]
struct Running {
    instance: Instance,
    task: usize,
    end: f64,
    cost: KernelCost,
}

/// Host time of a communication that began when no kernel ran.
struct Debt {
    begin: f64,
    end: f64,
    seconds: f64,
    category: Category,
}

struct State<'p> {
    driver: Driver<'p>,
    step: usize,
    running: Option<Running>,
    debts: Vec<Debt>,
    /// What has come while the kernel runs, to be seen at its end.
    held: Vec<Completion>,
    traces: Vec<Trace>,
}

pub(super) struct Engine<'s, 'p> {
    schedule: &'s Schedule<'p>,
    steps: usize,
    states: Vec<State<'p>>,
    heap: BinaryHeap<Reverse<Completion>>,
    /// Instances that wait for an instance to start, with the delay and latency of the messages.
    waiters: HashMap<Instance, Vec<(Instance, f64, f64)>>,
    /// Instances that have come to a meeting of a step.
    arrived: HashMap<(usize, usize), Vec<Instance>>,
    /// Kernels under way, by node.
    computing: Vec<usize>,
    played: Played,
}

impl<'s, 'p> Engine<'s, 'p> {
    pub fn new(schedule: &'s Schedule<'p>, steps: usize) -> Self {
        let mut base = Vec::new();
        let mut next = 0;
        for player in &schedule.participants {
            base.push(next);
            next += player.duties.len() * steps;
        }
        let blank = Record {
            start: f64::NAN,
            end: 0.0,
            trigger: None,
            decider: 0,
            latency: 0.0,
            waits: 0,
            held_by: None,
            version: 0,
        };
        let state = |player: &Player<'p>| State {
            driver: Driver::new(player.body),
            step: 0,
            running: None,
            debts: Vec::new(),
            held: Vec::new(),
            traces: (0..steps).map(|step| blank_trace(player, step)).collect(),
        };
        Self {
            schedule,
            steps,
            states: schedule.participants.iter().map(state).collect(),
            heap: BinaryHeap::new(),
            waiters: HashMap::new(),
            arrived: HashMap::new(),
            computing: vec![0; schedule.crowds.len()],
            played: Played {
                records: vec![blank; next],
                base,
                traces: Vec::new(),
                stalls: HashMap::new(),
            },
        }
    }

    pub fn run(mut self) -> Result<Played, SimulateError> {
        for participant in 0..self.states.len() {
            self.start_ready(participant, 0.0, None);
        }
        while let Some(Reverse(completion)) = self.heap.pop() {
            if self.stands(&completion) && !self.held_back(completion) {
                self.complete(completion);
            }
        }
        for (state, player) in self.states.iter().zip(&self.schedule.participants) {
            if state.step < self.steps && !player.duties.is_empty() {
                return Err(SimulateError::Standstill {
                    rank: player.who.rank,
                    step: state.step,
                    open: state.driver.open(),
                });
            }
        }
        self.played.traces = self.states.into_iter().map(|state| state.traces).collect();
        Ok(self.played)
    }

    fn instance(&self, participant: usize, task: usize) -> Instance {
        self.instance_in(participant, self.states[participant].step, task)
    }

    fn instance_in(&self, participant: usize, step: usize, task: usize) -> Instance {
        let tasks = self.schedule.participants[participant].duties.len();
        self.played.base[participant] + step * tasks + task
    }

    /// False for the completion of a kernel whose end has moved since.
    fn stands(&self, completion: &Completion) -> bool {
        self.played.records[completion.instance].version == completion.version
    }

    /// Where a rank delivers between kernels only, what comes during one is seen at its end.
    fn held_back(&mut self, completion: Completion) -> bool {
        if !self.schedule.delivers_between_kernels {
            return false;
        }
        let record = &mut self.played.records[completion.instance];
        let state = &mut self.states[completion.participant];
        match state.running {
            Some(running)
                if running.instance != completion.instance
                    && running.end > completion.time
                    && record.held_by.is_none() =>
            {
                record.held_by = Some(running.instance as u32);
                state.held.push(completion);
                true
            }
            Some(_) | None => false,
        }
    }

    /// The kernel of a participant has ended.
    fn release(&mut self, participant: usize, now: f64) {
        self.states[participant].running = None;
        for completion in std::mem::take(&mut self.states[participant].held) {
            self.played.records[completion.instance].end = now;
            self.heap.push(Reverse(Completion {
                time: now,
                ..completion
            }));
        }
        self.crowd_changes(participant, false, now);
    }

    /// A kernel of a participant has begun or ended, so that those of its node go on at another pace.
    fn crowd_changes(&mut self, participant: usize, is_begun: bool, now: f64) {
        let schedule = self.schedule;
        if schedule.crowds.is_empty() {
            return;
        }
        let node = schedule.participants[participant].node;
        let crowd = &schedule.crowds[node];
        let before = self.computing[node];
        let after = if is_begun { before + 1 } else { before - 1 };
        self.computing[node] = after;
        for &other in crowd {
            let Some(running) = self.states[other].running else {
                continue;
            };
            let pace = |computing| running.cost.among(computing, crowd.len()).0;
            if other == participant || running.end <= now || pace(before) == 0.0 {
                continue;
            }
            let end = now + (running.end - now) * pace(after) / pace(before);
            self.reschedule(other, running, end);
        }
    }

    fn reschedule(&mut self, participant: usize, running: Running, end: f64) {
        let moved = Running { end, ..running };
        self.states[participant].running = Some(moved);
        let record = &mut self.played.records[moved.instance];
        record.end = end;
        record.version += 1;
        let version = record.version;
        self.heap.push(Reverse(Completion {
            time: end,
            instance: moved.instance,
            participant,
            task: moved.task,
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
        let record = &mut self.played.records[instance];
        // Those that were put off to later than this are void, too.
        record.version += 1;
        let start = record.start;
        let steps = self.steps;
        let running = self.states[participant].running;
        if running.is_some_and(|running| running.instance == instance) {
            self.release(participant, time);
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
            let record = &mut self.played.records[instance];
            record.start = now;
            record.end = now;
            record.trigger = trigger;
            record.decider = instance as u32;
            self.begin(participant, task as usize, instance, now);
        }
    }

    fn begin(&mut self, participant: usize, task: usize, instance: Instance, now: f64) {
        let schedule = self.schedule;
        match &schedule.participants[participant].duties[task] {
            Duty::Alone { cost } => self.begin_alone(participant, task, instance, *cost),
            Duty::Exchange { peers, .. } => {
                let step = self.states[participant].step;
                for peer in peers {
                    let other = self.instance_in(peer.participant, step, peer.task);
                    let has_come = !self.played.records[other].start.is_nan();
                    if other == instance || has_come || !peer.is_awaited {
                        self.arrive(instance, now + peer.delay, instance, peer.latency);
                    } else {
                        self.played.records[instance].waits += 1;
                        let waiting = (instance, peer.delay, peer.latency);
                        self.waiters.entry(other).or_default().push(waiting);
                    }
                }
                if self.played.records[instance].waits == 0 {
                    self.settle(instance, now);
                }
                for (waiter, delay, latency) in self.waiters.remove(&instance).unwrap_or_default() {
                    self.arrive(waiter, now + delay, instance, latency);
                    self.played.records[waiter].waits -= 1;
                    if self.played.records[waiter].waits == 0 {
                        self.settle(waiter, now);
                    }
                }
            }
            Duty::Collective {
                meeting,
                latency,
                seconds,
                ..
            } => {
                let key = (self.states[participant].step, *meeting);
                let present = self.arrived.entry(key).or_default();
                present.push(instance);
                if present.len() < schedule.meetings[*meeting] {
                    return;
                }
                for member in self.arrived.remove(&key).unwrap_or_default() {
                    self.arrive(member, now + seconds, instance, *latency);
                    self.settle(member, now);
                }
            }
        }
    }

    /// Messages of an instance arrive at `time` because `decider` has started.
    fn arrive(&mut self, instance: Instance, time: f64, decider: Instance, latency: f64) {
        let record = &mut self.played.records[instance];
        if time >= record.end {
            record.end = time;
            record.decider = decider as u32;
            record.latency = latency;
        }
    }

    /// The end of a communication is known: it will complete then, and costs its host meanwhile.
    fn settle(&mut self, instance: Instance, now: f64) {
        let (participant, _, task) = self.played.locate(self.schedule, instance);
        let time = self.played.records[instance].end;
        self.heap.push(Reverse(Completion {
            time,
            instance,
            participant,
            task,
            version: 0,
        }));
        let player = &self.schedule.participants[participant];
        let seconds = match &player.duties[task] {
            Duty::Alone { .. } => 0.0,
            Duty::Exchange { host, .. } | Duty::Collective { host, .. } => *host,
        };
        if seconds == 0.0 {
            return;
        }
        let category = Category::of(&player.body.tasks[task]);
        match self.states[participant].running {
            // A kernel that ends now is through, even if its completion has yet to be looked at.
            Some(running) if running.end > now => {
                self.hold_up(participant, running, seconds, category);
            }
            Some(_) | None => self.states[participant].debts.push(Debt {
                begin: now,
                end: time,
                seconds,
                category,
            }),
        }
    }

    fn hold_up(&mut self, participant: usize, running: Running, seconds: f64, category: Category) {
        self.note_stall(running.instance, category, seconds);
        self.reschedule(participant, running, running.end + seconds);
    }

    fn note_stall(&mut self, instance: Instance, category: Category, seconds: f64) {
        self.played
            .stalls
            .entry(instance)
            .or_default()
            .push((category, seconds));
    }

    fn begin_alone(
        &mut self,
        participant: usize,
        task: usize,
        instance: Instance,
        cost: KernelCost,
    ) {
        let now = self.played.records[instance].start;
        let player = &self.schedule.participants[participant];
        let is_kernel = match player.body.tasks[task].work.lane() {
            Lane::Compute => true,
            Lane::Exchange | Lane::Collective | Lane::Io => false,
        };
        let mut end = now + cost.together.0;
        if is_kernel {
            if let Some(crowd) = self.schedule.crowds.get(player.node) {
                let computing = self.computing[player.node] + 1;
                end = now + cost.among(computing, crowd.len()).0;
            }
            for debt in std::mem::take(&mut self.states[participant].debts) {
                if debt.end <= now {
                    continue;
                }
                let left = (debt.end - now) / (debt.end - debt.begin);
                end += debt.seconds * left;
                self.note_stall(instance, debt.category, debt.seconds * left);
            }
            self.states[participant].running = Some(Running {
                instance,
                task,
                end,
                cost,
            });
            self.crowd_changes(participant, true, now);
        }
        self.played.records[instance].end = end;
        self.heap.push(Reverse(Completion {
            time: end,
            instance,
            participant,
            task,
            version: 0,
        }));
    }
}

fn blank_trace(player: &Player<'_>, step: usize) -> Trace {
    Trace {
        rank: player.who.rank,
        step: step as u64,
        events: Vec::with_capacity(player.duties.len()),
    }
}
