//! One rank, and a step of it.

use crate::{
    Arena, Clock, Driver, Event, FiniteCheck, Inputs, KernelTally, Kernels, Memory, Prefetch,
    RunError, Sink, Source, Trace, Transport, Watchdog,
};
use partita_program::{Access, Body, Count, Lane, TaskId, View, When, Work};
use partita_space::{Rank, Seconds};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longest sleep of a waiting rank. Long under Miri, where polling takes most of the time.
const SLEEP_MAX: Duration = Duration::from_millis(if cfg!(miri) { 1000 } else { 20 });

/// One rank with everything it needs to run programs.
pub struct RankRunner<'w> {
    /// Its number.
    pub rank: Rank,
    /// Its memory.
    pub arena: Arena,
    /// Its kernels.
    pub kernels: Box<dyn Kernels + 'w>,
    /// Its messages and collectives.
    pub transport: Box<dyn Transport + 'w>,
    /// Its samples.
    pub source: Box<dyn Source + 'w>,
    /// Takes its predictions.
    pub sink: Box<dyn Sink + 'w>,
    /// The clock of traces and of the watchdog.
    pub clock: Box<dyn Clock + 'w>,
    /// Ends all ranks when set.
    pub cancel: &'w AtomicBool,
    /// Limit of the [`Watchdog`]: longest time without a completed task.
    pub watchdog: Seconds,
}

/// The result of a step.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// From the first start to the last completion.
    pub seconds: Seconds,
    /// Start and end of every task.
    pub trace: Trace,
    /// Values of the body's outputs, in their order.
    pub outputs: Vec<Vec<f64>>,
}

/// A body with the expected tally of each of its steps.
#[derive(Clone, Copy)]
pub struct CountedBody<'b> {
    body: &'b Body,
    count: Count,
    worked: KernelTally,
}

impl<'b> From<&'b Body> for CountedBody<'b> {
    fn from(body: &'b Body) -> Self {
        let mut worked = KernelTally::default();
        for task in &body.tasks {
            if let Work::Compute { kernel, .. } = &task.work {
                worked += KernelTally::expected(kernel, &body.buffers);
            }
        }
        Self {
            body,
            count: body.count(),
            worked,
        }
    }
}

impl RankRunner<'_> {
    /// Runs one step of a body. Pass a [`CountedBody`] to count a body of many steps only once.
    ///
    /// Errors: those of kernels, transport and source, a stall beyond the watchdog's limit, a cancellation,
    /// or a tally that differs from the program's.
    pub fn step<'b>(
        &mut self,
        body: impl Into<CountedBody<'b>>,
        inputs: &Inputs,
    ) -> Result<StepReport, RunError> {
        self.step_with(body.into(), inputs, None)
    }

    /// As [`step`](Self::step), and checks what the kernels read and write for values that are not finite.
    ///
    /// Errors: as for [`step`](Self::step).
    pub fn step_checked<'b>(
        &mut self,
        body: impl Into<CountedBody<'b>>,
        inputs: &Inputs,
        check: &mut FiniteCheck,
    ) -> Result<StepReport, RunError> {
        self.step_with(body.into(), inputs, Some(check))
    }

    fn step_with(
        &mut self,
        counted: CountedBody<'_>,
        inputs: &Inputs,
        check: Option<&mut FiniteCheck>,
    ) -> Result<StepReport, RunError> {
        let body = counted.body;
        let mut step = Step {
            rank: self.rank,
            memory: self.arena.memory(body),
            kernels: &mut *self.kernels,
            transport: &mut *self.transport,
            source: &mut *self.source,
            sink: &mut *self.sink,
            clock: &*self.clock,
            cancel: self.cancel,
            watchdog: self.watchdog,
            driver: Driver::new(body),
            body,
            inputs,
            compute: VecDeque::new(),
            exchanges: VecDeque::new(),
            collectives: VecDeque::new(),
            fetches: Vec::new(),
            started: vec![Seconds(0.0); body.tasks.len()],
            in_flight: Vec::new(),
            events: Vec::with_capacity(body.tasks.len()),
            given: Vec::new(),
            spans: Vec::new(),
            worked: KernelTally::default(),
            check,
        };
        let start = step.clock.now();
        let ran = step.run();
        step.release(|_| true);
        ran?;
        step.drain()?;
        let seconds = step.clock.now() - start;
        step.correct_events();
        let value = |view| {
            let mut values = Vec::new();
            step.memory.pack::<f64>(view, &mut values);
            values
        };
        let outputs = body.outputs.iter().map(|output| value(&output.view));
        let outputs = outputs.collect();
        // Fails where an access to the memory of a device failed.
        step.kernels.finish()?;
        let (worked, events) = (step.worked, step.events);
        self.check_tally(worked, &counted)?;
        let trace = Trace {
            rank: self.rank,
            step: inputs.step,
            events,
        };
        Ok(StepReport {
            seconds,
            trace,
            outputs,
        })
    }

    fn check_tally(
        &mut self,
        worked: KernelTally,
        counted: &CountedBody<'_>,
    ) -> Result<(), RunError> {
        let expected = &counted.count;
        let [messages, message_bytes, collectives, collective_bytes] = self.transport.take_tally();
        let pairs = [
            ("flops", worked.flops, counted.worked.flops),
            ("bytes of kernels", worked.bytes, counted.worked.bytes),
            ("messages", messages, expected.messages),
            ("bytes of messages", message_bytes, expected.message_bytes.0),
            ("collectives", collectives, expected.collectives),
            (
                "bytes of collectives",
                collective_bytes,
                expected.collective_bytes.0,
            ),
            (
                "bytes loaded",
                self.source.take_tally(),
                expected.load_bytes.0,
            ),
            (
                "bytes stored",
                self.sink.take_tally(),
                expected.store_bytes.0,
            ),
        ];
        for (what, counted, expected) in pairs {
            if counted != expected {
                let what = what.to_owned();
                return Err(RunError::Tally {
                    rank: self.rank,
                    what,
                    counted,
                    expected,
                });
            }
        }
        Ok(())
    }
}

struct Step<'s, 'w> {
    rank: Rank,
    memory: Memory<'s>,
    kernels: &'s mut (dyn Kernels + 'w),
    transport: &'s mut (dyn Transport + 'w),
    source: &'s mut (dyn Source + 'w),
    sink: &'s mut (dyn Sink + 'w),
    clock: &'s (dyn Clock + 'w),
    cancel: &'s AtomicBool,
    watchdog: Seconds,
    driver: Driver<'s>,
    body: &'s Body,
    inputs: &'s Inputs,
    compute: VecDeque<TaskId>,
    /// Exchanges and collectives that start once there are packets for them.
    exchanges: VecDeque<TaskId>,
    collectives: VecDeque<TaskId>,
    /// What a device packs of messages that start soon, or has packed of those in flight.
    fetches: Vec<Fetch>,
    started: Vec<Seconds>,
    in_flight: Vec<TaskId>,
    events: Vec<Event>,
    /// Kernels that may still run on a device, in their order.
    given: Vec<TaskId>,
    /// When those before ran there.
    spans: Vec<Event>,
    worked: KernelTally,
    check: Option<&'s mut FiniteCheck>,
}

/// What a device packs of a message.
struct Fetch {
    task: TaskId,
    /// None of a message that sends nothing.
    boxes: Option<Prefetch>,
    /// Whether all has been seen on the host.
    is_there: bool,
}

impl Step<'_, '_> {
    fn run(&mut self) -> Result<(), RunError> {
        let mut done = Vec::new();
        let mut watchdog = Watchdog::start(self.watchdog, self.clock.now());
        while !self.driver.is_finished() {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(RunError::Cancelled);
            }
            self.start_ready()?;
            if let Some(task) = self.compute.pop_front() {
                self.execute(task)?;
                // What is stored meanwhile would wait for all that a device has been given.
                if self.in_flight.iter().any(|&task| self.is_store(task)) {
                    self.drain()?;
                }
                done.push(task);
            }
            self.deliver(&mut done)?;
            let mut waits_since = None;
            if done.is_empty() {
                let epoch = self.awaited_epoch();
                waits_since = epoch.map(|epoch| (epoch, self.clock.now()));
                if !self.wait_for_device() {
                    self.transport.wait(SLEEP_MAX);
                }
                self.deliver(&mut done)?;
            }
            let now = self.clock.now();
            if let Some((epoch, since)) = waits_since {
                self.source.waited(epoch, now - since);
            }
            if done.is_empty() && watchdog.poll(now) {
                return Err(self.stalled());
            }
            for task in done.drain(..) {
                watchdog.reset(now);
                self.driver.complete(task);
                self.in_flight.retain(|&other| other != task);
                self.release(|other| other == task);
                let start = self.started[task.0 as usize];
                self.events.push(Event {
                    task,
                    start,
                    end: now,
                });
            }
        }
        Ok(())
    }

    /// The epoch of the samples that the rank waits for, if it waits for nothing else.
    fn awaited_epoch(&self) -> Option<u64> {
        if !self.exchanges.is_empty() || !self.collectives.is_empty() {
            return None;
        }
        let epoch = |&task: &TaskId| match &self.body.tasks[task.0 as usize].work {
            Work::Load(load) => Some(match load.when {
                When::Now => self.inputs.epoch,
                When::Next => self.inputs.next_epoch,
            }),
            Work::Compute { .. } | Work::Exchange(_) | Work::Collective(_) | Work::Store(_) => None,
        };
        let mut epochs = self.in_flight.iter().map(epoch);
        let first = epochs.next().flatten();
        first.filter(|_| epochs.all(|epoch| epoch.is_some()))
    }

    fn is_io(&self, task: TaskId) -> bool {
        self.body.tasks[task.0 as usize].work.lane() == Lane::Io
    }

    fn is_store(&self, task: TaskId) -> bool {
        matches!(self.body.tasks[task.0 as usize].work, Work::Store(_))
    }

    fn start_ready(&mut self) -> Result<(), RunError> {
        while let Some(task) = self.driver.next_ready() {
            // It begins when the kernels before it have ended, not when a device was given them.
            if self.is_io(task) {
                self.drain()?;
            }
            self.started[task.0 as usize] = self.clock.now();
            match &self.body.tasks[task.0 as usize].work {
                Work::Compute { .. } => self.compute.push_back(task),
                Work::Exchange(_) => self.exchanges.push_back(task),
                Work::Collective(_) => self.collectives.push_back(task),
                Work::Load(load) => {
                    self.source.start(task, load, self.inputs)?;
                    self.in_flight.push(task);
                }
                Work::Store(store) => {
                    self.sink.start(task, store, self.inputs)?;
                    self.in_flight.push(task);
                }
            }
        }
        self.start_messages()
    }

    /// Starts exchanges and collectives, each lane in order, as far as there are packets.
    fn start_messages(&mut self) -> Result<(), RunError> {
        for lane in [Lane::Exchange, Lane::Collective] {
            while let Some(&task) = self.waiting(lane).front() {
                let Some(ago) = self.packed(task) else {
                    break;
                };
                self.started[task.0 as usize] = self.clock.now() - ago;
                let (transport, memory) = (&mut self.transport, &self.memory);
                let has_started = match &self.body.tasks[task.0 as usize].work {
                    Work::Exchange(exchange) => transport.start_exchange(task, exchange, memory)?,
                    Work::Collective(collective) => {
                        transport.start_collective(task, collective, memory)?
                    }
                    Work::Compute { .. } | Work::Load(_) | Work::Store(_) => {
                        panic!("task {} sends nothing", task.0)
                    }
                };
                if !has_started {
                    break;
                }
                self.waiting(lane).pop_front();
                self.in_flight.push(task);
            }
        }
        Ok(())
    }

    /// How long ago a device began to pack what a message sends, once that is on the host. The first call has it packed,
    /// behind the kernels that the device was given; the time that it waits for these is not time of the message.
    fn packed(&mut self, task: TaskId) -> Option<Seconds> {
        let Some(device) = self.memory.device() else {
            return Some(Seconds(0.0));
        };
        let held = self.fetches.iter().position(|fetch| fetch.task == task);
        let number = held.unwrap_or_else(|| {
            let boxes = match &self.body.tasks[task.0 as usize].work {
                Work::Exchange(exchange) => {
                    let sent: Vec<View> = exchange.sends.iter().map(|send| send.view).collect();
                    self.memory.prefetch(&sent)
                }
                Work::Collective(collective) => {
                    self.memory.prefetch(&collective.kind.sources().to_vec())
                }
                Work::Compute { .. } | Work::Load(_) | Work::Store(_) => None,
            };
            self.fetches.push(Fetch {
                task,
                boxes,
                is_there: boxes.is_none(),
            });
            self.fetches.len() - 1
        });
        let fetch = &mut self.fetches[number];
        let ago = fetch
            .boxes
            .map_or(Some(Seconds(0.0)), |boxes| device.fetched(boxes, false));
        fetch.is_there |= ago.is_some();
        ago
    }

    /// Waits until a device has packed a message that has not started; false if it packs none.
    fn wait_for_device(&mut self) -> bool {
        let Some(device) = self.memory.device() else {
            return false;
        };
        let next = [self.exchanges.front(), self.collectives.front()];
        let is_awaited = |fetch: &&Fetch| !fetch.is_there && next.contains(&Some(&fetch.task));
        let awaited = self.fetches.iter().find(is_awaited);
        let boxes = awaited.and_then(|fetch| fetch.boxes);
        boxes.is_some_and(|boxes| device.fetched(boxes, true).is_some())
    }

    /// Forgets what a device has packed of messages that have ended.
    fn release(&mut self, have_ended: impl Fn(TaskId) -> bool) {
        let device = self.memory.device();
        for fetch in self.fetches.extract_if(.., |fetch| have_ended(fetch.task)) {
            if let (Some(device), Some(boxes)) = (device, fetch.boxes) {
                device.release(boxes);
            }
        }
    }

    /// Messages of a lane that have not started.
    fn waiting(&mut self, lane: Lane) -> &mut VecDeque<TaskId> {
        match lane {
            Lane::Collective => &mut self.collectives,
            Lane::Exchange | Lane::Compute | Lane::Io => &mut self.exchanges,
        }
    }

    /// Waits for the kernels of a device, and notes when they ran.
    fn drain(&mut self) -> Result<(), RunError> {
        if self.given.is_empty() {
            return Ok(());
        }
        let spans = self.kernels.finish()?;
        let now = self.clock.now();
        for (task, span) in self.given.drain(..).zip(spans) {
            self.spans.push(Event {
                task,
                start: now - span.begun,
                end: now - span.ended,
            });
        }
        Ok(())
    }

    /// Puts the times at which a device ran kernels in place of those at which it was given them.
    fn correct_events(&mut self) {
        if self.spans.is_empty() {
            return;
        }
        let mut on_device = vec![None; self.body.tasks.len()];
        for span in &self.spans {
            on_device[span.task.0 as usize] = Some(*span);
        }
        for event in &mut self.events {
            *event = on_device[event.task.0 as usize].unwrap_or(*event);
        }
        self.events.sort_by(|a, b| a.end.0.total_cmp(&b.end.0));
    }

    fn execute(&mut self, task: TaskId) -> Result<(), RunError> {
        let Work::Compute {
            kernel,
            algorithm,
            workspace,
        } = &self.body.tasks[task.0 as usize].work
        else {
            panic!("task {} is no kernel", task.0);
        };
        self.started[task.0 as usize] = self.clock.now();
        let check = self.check.as_mut().filter(|check| !check.is_done());
        let read =
            check.and_then(|check| check.find((kernel, self.inputs), &self.memory, Access::reads));
        let (transport, cancel) = (&mut self.transport, self.cancel);
        let mut progress = || {
            transport.advance();
            !cancel.load(Ordering::Relaxed)
        };
        self.worked += self.kernels.execute(
            kernel,
            algorithm,
            workspace.as_ref(),
            &self.memory,
            self.inputs,
            &mut progress,
        )?;
        self.given.push(task);
        if let Some(check) = self.check.as_mut().filter(|check| !check.is_done()) {
            let written = check.find((kernel, self.inputs), &self.memory, Access::writes);
            let (at, task) = (
                (self.rank, self.inputs.step),
                &self.body.tasks[task.0 as usize],
            );
            check.note(at, task, &self.memory, read, written);
        }
        Ok(())
    }

    fn deliver(&mut self, done: &mut Vec<TaskId>) -> Result<(), RunError> {
        self.transport.poll(&self.memory, done)?;
        self.source.poll(&self.memory, done)?;
        self.sink.poll(&self.memory, done)
    }

    fn stalled(&self) -> RunError {
        let mut waiting = self.in_flight.iter().chain(&self.exchanges);
        let task = waiting.next().or(self.collectives.front());
        let task = *task.expect("a step that waits has a task in flight");
        let body_task = &self.body.tasks[task.0 as usize];
        let sequence = match &body_task.work {
            Work::Exchange(exchange) => exchange.sequence,
            Work::Collective(collective) => collective.sequence,
            Work::Compute { .. } | Work::Load(_) | Work::Store(_) => 0,
        };
        RunError::Stalled {
            rank: self.rank,
            limit: self.watchdog,
            work: body_task.work.name().to_owned(),
            layer: body_task.origin.layer.clone(),
            task: task.0,
            sequence,
            missing: self.transport.missing(task),
        }
    }
}
