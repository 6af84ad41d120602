//! Gradient flow: a parameter is updated by the gradients of all micro-batches from all submeshes that use it, and
//! the update reaches all of its replicas, after the last read of the old value. A kernel reads tensors of one
//! micro-batch; outputs, and the counts of targets by which a loss divides, are of all micro-batches.
//!
//! The micro-batches of a gradient follow from the tensors that its kernels read; the required ones from the
//! kernels that read the parameter. Reductions, messages and copies propagate them. The ranks of a reduction are
//! checked in `partial`.

mod uses;

use self::uses::{Numbers, Uses};
use crate::collectives::GroupMembers;
use crate::memory::without;
use crate::{Case, Fault};
use partita_program::descriptor::{Descriptor, Flow, SumRole};
use partita_program::{
    Access, Body, BufferId, Collective, Exchange, GRADIENT_SQUARES, Group, Kernel, Load, Output,
    Role, View, When, Work,
};
use partita_space::{Rank, Region, Submesh};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Abstract contents of elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Contents {
    /// Uses of a parameter of which they hold gradients; for other values, micro-batches without submesh.
    uses: Uses,
    /// For a parameter: whether it has been updated in this step.
    is_updated: bool,
}

impl Contents {
    /// Of one micro-batch.
    fn of(number: u32) -> Self {
        Self {
            uses: Uses::of(None, number),
            is_updated: false,
        }
    }

    fn join(mut self, other: &Self) -> Self {
        self.uses.join(&other.uses);
        self.is_updated &= other.is_updated;
        self
    }
}

/// Join of optional contents.
fn join(all: Option<Contents>, one: Option<&Contents>) -> Option<Contents> {
    match (all, one) {
        (Some(all), Some(one)) => Some(all.join(one)),
        (all, one) => all.or_else(|| one.cloned()),
    }
}

/// What each class sends: by message number, and for messages by receiver and part.
type Sent = HashMap<(usize, u32, [i32; 7], u32), Contents>;

/// What all members of a group send to a collective, by first member, group, message number and part.
type Sums = HashMap<(Rank, Group, u32, u32), Option<Contents>>;

/// A parameter or gradient: a tensor on all ranks, or a buffer of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Tensor(u32),
    Buffer(usize, BufferId),
}

pub(crate) fn check(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut groups = GroupMembers::default();
    let mut given = Sent::new();
    let numbers = Numbers::new(case.bodies().map(|(_, body)| body));
    // Fixed-point iteration, since what ranks receive depends on what others have received.
    let (uses, readers, results) = loop {
        let (mut next, mut sums) = (Sent::new(), Sums::new());
        let (mut uses, mut readers) = (BTreeMap::new(), BTreeMap::new());
        let mut results = Vec::new();
        for (class, body) in case.bodies() {
            let mut interpreter = Interpreter {
                case,
                class,
                body,
                numbers: &numbers,
                contents: initial(body, &numbers),
                groups: &mut groups,
                given: &given,
                next: &mut next,
                sums: &mut sums,
                uses: &mut uses,
                readers: &mut readers,
                packed: HashMap::new(),
                findings: Findings::default(),
            };
            interpreter.run();
            results.push((interpreter.contents, interpreter.findings));
        }
        if next == given {
            break (uses, readers, results);
        }
        given = next;
    };
    let (mut updated, mut samples) = (BTreeSet::new(), BTreeSet::new());
    for (_, findings) in &results {
        updated.extend(&findings.updated);
        samples.extend(&findings.samples);
    }
    for (class, (contents, findings)) in results.into_iter().enumerate() {
        faults.extend(findings.faults);
        for (task, [parameter, view], got) in findings.updates {
            let given = uses.get(&key(case, class, &view));
            let all = [given, readers.get(&key(case, class, &parameter))];
            let missing = all
                .into_iter()
                .flatten()
                .flat_map(|all| got.missing(all))
                .map(|(submesh, at)| (submesh, numbers.sample(at)));
            if let Some((submesh, sample)) = missing.min() {
                faults.push(Fault::GradientIncomplete {
                    site: case.site(class, task),
                    spot: case.spot(class, &view),
                    first: submesh.map_or(0, |submesh| submesh.first()),
                    sample,
                });
            }
        }
        for (name, got) in findings.outputs {
            let is_missing = |sample: &usize| !got.contains(None, numbers.of(*sample));
            let missing = samples.iter().copied().find(is_missing);
            faults.extend(missing.map(|sample| Fault::OutputIncomplete {
                class,
                rank: case.representatives[class],
                name,
                sample,
            }));
        }
        faults.extend(stale(case, class, &contents, &updated));
    }
}

/// Replicas of parameters that are not updated although others are.
fn stale(
    case: &Case<'_>,
    class: usize,
    contents: &[Vec<(Region, Contents)>],
    updated: &BTreeSet<u32>,
) -> Vec<Fault> {
    let buffers = case.program.bodies[class].buffers.iter().enumerate();
    let kept = buffers.filter(|(_, buffer)| {
        buffer.role.is_of_model()
            && buffer
                .tensor
                .is_some_and(|tensor| updated.contains(&tensor.id))
    });
    let old = kept.filter_map(|(id, _)| {
        let mut pieces = contents[id].iter();
        let (region, _) = pieces.find(|(_, contents)| !contents.is_updated)?;
        Some(Fault::WeightsStale {
            class,
            rank: case.representatives[class],
            spot: case.buffer_region_at(class, id, *region),
        })
    });
    old.collect()
}

fn key(case: &Case<'_>, class: usize, view: &View) -> Key {
    match case.tensor(class, view) {
        Some(tensor) => Key::Tensor(tensor.id),
        None => Key::Buffer(class, view.buffer),
    }
}

/// Initial contents: disjoint regions of each buffer, where they are tracked. What a step loads for the next one was
/// loaded for it by the step before.
fn initial(body: &Body, numbers: &Numbers) -> Vec<Vec<(Region, Contents)>> {
    let buffers = body.buffers.iter().enumerate();
    let of = buffers.map(|(id, buffer)| {
        let region = buffer.view(BufferId(id as u32)).region();
        if buffer.role.is_of_model() && !region.is_empty() {
            vec![(region, Contents::default())]
        } else {
            Vec::new()
        }
    });
    let mut all: Vec<_> = of.collect();
    for load in body.loads().filter(|load| load.when == When::Next) {
        let region = load.target.region();
        if !region.is_empty() {
            let contents = Contents::of(numbers.of(first_sample(load)));
            all[load.target.buffer.0 as usize].push((region, contents));
        }
    }
    all
}

/// The first sample of the micro-batch of a load.
fn first_sample(load: &Load) -> usize {
    load.distribution.micro.map_or(0, |(first, _)| first)
}

/// Findings for a class.
#[derive(Default)]
struct Findings {
    /// Updates with their parameters and gradients, and the uses that the gradients hold.
    updates: Vec<(usize, [View; 2], Uses)>,
    /// Tensors of updated parameters.
    updated: BTreeSet<u32>,
    /// First samples of micro-batches.
    samples: BTreeSet<usize>,
    /// Outputs with their micro-batches.
    outputs: Vec<(String, Uses)>,
    faults: Vec<Fault>,
}

struct Interpreter<'a, 'p> {
    case: &'a Case<'p>,
    class: usize,
    body: &'p Body,
    numbers: &'a Numbers,
    contents: Vec<Vec<(Region, Contents)>>,
    groups: &'a mut GroupMembers,
    given: &'a Sent,
    next: &'a mut Sent,
    sums: &'a mut Sums,
    /// Uses of which kernels compute gradients.
    uses: &'a mut BTreeMap<Key, Uses>,
    /// Uses in which kernels read a parameter.
    readers: &'a mut BTreeMap<Key, Uses>,
    /// Original weights of packed ones.
    packed: HashMap<BufferId, View>,
    findings: Findings,
}

impl<'p> Interpreter<'_, 'p> {
    /// Conflicting tasks are ordered as listed, or there is a race, another fault.
    fn run(&mut self) {
        for (id, task) in self.body.tasks.iter().enumerate() {
            match &task.work {
                Work::Compute { kernel, .. } => {
                    kernel.parts().iter().for_each(|part| self.kernel(id, part));
                }
                Work::Exchange(exchange) => self.exchange(exchange),
                Work::Collective(collective) => self.collective(collective),
                Work::Load(load) => {
                    let contents = Contents::of(self.numbers.of(first_sample(load)));
                    self.write(&load.target, Some(contents));
                }
                Work::Store(_) => {}
            }
        }
        // The norm is of gradients, which are checked where they update parameters.
        let of_samples = |output: &&Output| output.name != GRADIENT_SQUARES;
        for output in self.body.outputs.iter().filter(of_samples) {
            let uses = self.read(&output.view).unwrap_or_default().uses;
            self.findings.outputs.push((output.name.clone(), uses));
        }
    }

    fn role(&self, view: &View) -> Role {
        self.body.buffer(view.buffer).role
    }

    /// Joined contents of a view.
    fn read(&self, view: &View) -> Option<Contents> {
        let region = view.region();
        if self.role(view).is_activation() {
            let tensor = self.case.tensor(self.class, view)?;
            let first = tensor.distribution.micro.map_or(0, |(first, _)| first);
            return (!region.is_empty()).then(|| Contents::of(self.numbers.of(first)));
        }
        let pieces = self.contents[view.buffer.0 as usize].iter();
        let touched = pieces.filter(|(piece, _)| piece.touches(&region));
        touched.fold(None, |all, (_, contents)| join(all, Some(contents)))
    }

    fn write(&mut self, view: &View, contents: Option<Contents>) {
        let region = view.region();
        let is_followed = match self.role(view) {
            Role::Parameter
            | Role::State
            | Role::Constant
            | Role::Average
            | Role::Gradient
            | Role::Gathered
            | Role::PackedWeights
            | Role::Staging
            | Role::Statistics => !region.is_empty(),
            Role::Optimizer | Role::Activation | Role::ActivationGradient | Role::Workspace => {
                false
            }
        };
        if !is_followed {
            return;
        }
        let pieces = &mut self.contents[view.buffer.0 as usize];
        let old = std::mem::take(pieces).into_iter();
        pieces.extend(old.flat_map(|(piece, contents)| {
            let left = if piece.touches(&region) {
                piece.minus(&region)
            } else {
                vec![piece]
            };
            left.into_iter().map(move |piece| (piece, contents.clone()))
        }));
        pieces.extend(contents.map(|contents| (region, contents)));
    }

    fn put(&mut self, view: &View, contents: Option<Contents>, accumulate: bool) {
        let before = if accumulate { self.read(view) } else { None };
        self.write(view, join(contents, before.as_ref()));
    }

    fn kernel(&mut self, task: usize, kernel: &Kernel) {
        let descriptor = kernel.descriptor();
        let operands = descriptor.operands.iter();
        let read = operands.clone().filter(|operand| operand.access.reads());
        read.for_each(|operand| self.check_loaded(task, operand.view));
        match descriptor.flow {
            Flow::Clears { .. } => operands.for_each(|target| self.write(target.view, None)),
            Flow::Copies { source } => {
                let contents = self.read(source);
                for target in operands.filter(|operand| operand.access.writes()) {
                    if self.role(target.view).is_activation() {
                        self.one_micro_batch(task, &descriptor.accesses());
                    }
                    let adds = target.access.reads();
                    self.put(target.view, contents.clone(), adds);
                }
            }
            Flow::Updates {
                parameter,
                gradient,
            } => {
                let uses = self.read(gradient).unwrap_or_default().uses;
                if !gradient.is_empty() {
                    let both = [*parameter, *gradient];
                    self.findings.updates.push((task, both, uses));
                }
                self.updates(parameter);
            }
            Flow::Averages { parameter, average } => {
                if self.read(parameter).is_some_and(|read| !read.is_updated) {
                    self.findings.faults.push(Fault::AveragedEarly {
                        site: self.case.site(self.class, task),
                        spot: self.case.spot(self.class, parameter),
                    });
                }
                self.updates(average);
            }
            Flow::Measures { gradient } => {
                let contents = self.read(gradient);
                for target in operands.filter(|operand| operand.access == Access::Write) {
                    self.write(target.view, contents.clone());
                }
            }
            Flow::Tracks => {
                let moved = operands.filter(|operand| operand.access.writes());
                moved.for_each(|operand| self.updates(operand.view));
            }
            Flow::Packs { w, packed, .. } => {
                self.packed.insert(packed.buffer, *w);
                self.computes(task, descriptor.accesses());
            }
            Flow::Computes => {
                let accesses = self.without_counts(&descriptor);
                self.computes(task, accesses);
            }
        }
    }

    /// Samples and targets are loaded before a kernel reads them, by this step or the one before.
    fn check_loaded(&mut self, task: usize, view: &View) {
        if self.role(view) != Role::Staging || view.is_empty() {
            return;
        }
        let pieces = self.contents[view.buffer.0 as usize].iter();
        let open = pieces.fold(vec![view.region()], |open, (piece, _)| without(open, piece));
        if !open.is_empty() {
            self.findings.faults.push(Fault::NotLoaded {
                site: self.case.site(self.class, task),
                spot: self.case.spot(self.class, view),
            });
        }
    }

    /// The accesses but those of counts over all micro-batches, which are listed to be checked.
    fn without_counts(&mut self, descriptor: &Descriptor<'_>) -> Vec<(View, Access)> {
        let mut accesses = descriptor.accesses();
        let counts = descriptor.operands.iter().enumerate();
        for (at, operand) in counts.filter(|(_, one)| matches!(one.sum_role, SumRole::OfStep)) {
            let uses = self.read(operand.view).unwrap_or_default().uses;
            let name = format!("{} of {}", operand.name, descriptor.name);
            self.findings.outputs.push((name, uses));
            accesses.remove(at);
        }
        accesses
    }

    fn updates(&mut self, parameter: &View) {
        let tensor = self.case.tensor(self.class, parameter);
        self.findings.updated.extend(tensor.map(|tensor| tensor.id));
        let moved = Contents {
            uses: Uses::default(),
            is_updated: true,
        };
        self.write(parameter, Some(moved));
    }

    /// A kernel that reads parameters and may compute a gradient.
    fn computes(&mut self, task: usize, accesses: Vec<(View, Access)>) {
        self.one_micro_batch(task, &accesses);
        let mut uses = Uses::default();
        for (view, access) in &accesses {
            let Some(contents) = self.read(view).filter(|_| access.reads()) else {
                continue;
            };
            let is_parameter = matches!(
                self.role(view),
                Role::Parameter | Role::Average | Role::Gathered | Role::PackedWeights
            );
            if is_parameter && contents.is_updated {
                self.findings.faults.push(Fault::UpdatedEarly {
                    site: self.case.site(self.class, task),
                    spot: self.case.spot(self.class, view),
                });
            }
            if *access == Access::Read {
                uses.join(&contents.uses);
            }
        }
        for (view, _) in accesses.iter().filter(|(_, access)| access.reads()) {
            self.parameter_read(view, &uses);
        }
        for (view, access) in accesses {
            if !access.writes() {
                continue;
            }
            let mut uses = uses.clone();
            if self.role(&view) == Role::Gradient && !view.is_empty() {
                uses = uses.with_mesh(self.submesh(&view));
                let key = key(self.case, self.class, &view);
                self.uses.entry(key).or_default().join(&uses);
            }
            let contents = Contents {
                uses,
                is_updated: false,
            };
            self.put(&view, Some(contents), access == Access::Update);
        }
    }

    /// The submesh of a parameter or gradient.
    fn submesh(&self, view: &View) -> Option<Submesh> {
        let tensor = self.case.tensor(self.class, view);
        tensor.and_then(|tensor| tensor.distribution.submesh)
    }

    /// A kernel reads a view for these micro-batches; if it is a parameter, its gradient needs them.
    fn parameter_read(&mut self, view: &View, uses: &Uses) {
        let parameter = match self.role(view) {
            Role::Parameter | Role::Gathered => *view,
            Role::PackedWeights => match self.packed.get(&view.buffer) {
                Some(parameter) => *parameter,
                None => return,
            },
            Role::State
            | Role::Constant
            | Role::Optimizer
            | Role::Average
            | Role::Gradient
            | Role::Staging
            | Role::Activation
            | Role::ActivationGradient
            | Role::Statistics
            | Role::Workspace => return,
        };
        if !view.is_empty() {
            let uses = uses.with_mesh(self.submesh(&parameter));
            let key = key(self.case, self.class, &parameter);
            self.readers.entry(key).or_default().join(&uses);
        }
    }

    /// Checks that tensors and sums over them are of one micro-batch.
    fn one_micro_batch(&mut self, task: usize, accesses: &[(View, Access)]) {
        let mut first = None;
        for (view, access) in accesses {
            let role = self.role(view);
            let is_read = *access == Access::Read;
            let counts = match role {
                Role::Activation | Role::ActivationGradient => true,
                Role::Statistics | Role::Staging => is_read,
                Role::Parameter
                | Role::State
                | Role::Constant
                | Role::Optimizer
                | Role::Average
                | Role::Gradient
                | Role::PackedWeights
                | Role::Gathered
                | Role::Workspace => false,
            };
            let contents = self.read(view).filter(|_| counts).unwrap_or_default();
            for sample in contents.uses.numbers().map(|at| self.numbers.sample(at)) {
                if *first.get_or_insert(sample) != sample {
                    self.findings.faults.push(Fault::MicroBatches {
                        site: self.case.site(self.class, task),
                        spot: self.case.spot(self.class, view),
                        sample,
                    });
                }
                self.findings.samples.insert(sample);
            }
        }
    }

    fn exchange(&mut self, exchange: &Exchange) {
        for send in &exchange.sends {
            let key = (self.class, exchange.sequence, send.to.0, send.part);
            if !self.role(&send.view).is_activation() {
                self.next
                    .extend(self.read(&send.view).map(|contents| (key, contents)));
            }
        }
        for receive in &exchange.receives {
            let mesh = &self.case.program.mesh;
            let given = |&rank: &Rank| {
                let peer = mesh.neighbor(rank, receive.from)?;
                let back = receive.from.reversed().0;
                let class = self.case.class_of(peer);
                let key = (class, exchange.sequence, back, receive.part);
                self.given.get(&key).cloned()
            };
            let ranks = self.case.ranks_beside(self.class, receive.from).iter();
            let given = ranks.map(|rank| (*rank, given(rank))).collect();
            let given = self.the_same(given, || format!("from the rank at {:?}", receive.from));
            self.put(&receive.view, given, receive.accumulate);
        }
    }

    /// What all ranks of the class receive; a fault where two receive different gradients.
    fn the_same(
        &mut self,
        received: Vec<(Rank, Option<Contents>)>,
        from: impl Fn() -> String,
    ) -> Option<Contents> {
        let mut received = received.into_iter();
        let (representative, first) = received.next()?;
        if let Some((rank, _)) = received.find(|(_, contents)| *contents != first) {
            self.findings.faults.push(Fault::NotEquivalent {
                class: self.class,
                rank,
                representative,
                reason: format!("gradients of other micro-batches {}", from()),
            });
        }
        first
    }

    fn collective(&mut self, collective: &Collective) {
        let parts = collective.kind.parts().into_iter();
        for (part, views) in (0..).zip(parts) {
            self.part_of_collective(collective, part, views);
        }
    }

    fn part_of_collective(
        &mut self,
        collective: &Collective,
        part: u32,
        (sources, targets): (&[View], &[View]),
    ) {
        let is_followed = |view: &&View| !self.role(view).is_activation();
        let mine = sources
            .iter()
            .filter(is_followed)
            .map(|view| self.read(view))
            .fold(None, |all, one| join(all, one.as_ref()));
        let key = |class: usize| (class, collective.sequence, [0; 7], part);
        self.next
            .extend(mine.clone().map(|mine| (key(self.class), mine)));
        let kind = collective.group();
        let mut sums = Vec::new();
        for &rank in self.case.ranks_in(self.class, kind) {
            let group = self.groups.of(self.case, rank, kind);
            let sum_of = (group.members[0], kind, collective.sequence, part);
            let sum = self.sums.entry(sum_of).or_insert_with(|| {
                let classes = group.firsts.iter().map(|&rank| self.case.class_of(rank));
                let given = classes.filter_map(|class| self.given.get(&key(class)));
                given.fold(None, |all, one| join(all, Some(one)))
            });
            sums.push((rank, sum.clone()));
        }
        let sum = self.the_same(sums, || format!("from the group along {}", kind.axes));
        let all = join(mine, sum.as_ref());
        for target in targets {
            self.write(target, all.clone());
        }
    }
}
