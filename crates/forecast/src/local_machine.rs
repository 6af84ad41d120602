//! This machine: kernels and links are measured when a program needs them, and cached in a file.

mod error;
mod passes;

pub use error::LocalError;

use crate::budget::{LEAST_OF_PROGRAM, MeasuringBudget};
use crate::input::InputSource;
use partita_oracle::{
    Contention, Features, KernelModel, KernelSample, MeasuredCosts, Mode, Prediction, predict,
};
use partita_program::{Dtype, KernelShape, Menu, Program, Work};
use partita_run::allocation::name_work;
use partita_run::{Kernels, Transport};
use partita_site::kernel_set::{CoreSlot, KernelSet, Precision, at_once, cores, oversubscription};
use partita_site::{Context, Host, Ranks, setting};
use partita_space::{Bytes, BytesPerSecond, FlopsPerSecond, Mesh, Rank, Seconds};
use partita_threads::connect;
use partita_tune::{
    Conditions, DivisionPolicy, KernelKey, KernelMaker, KernelTime, LinkSizes, LinkTimes,
    Measurements, NetworkTimes, Options, TransferTime, Variant, Variants, measure, measure_links,
    measure_load, measure_memory, median_of_passes,
};
use passes::{PassBounds, Series, Wanted, wanted};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of this machine in reports.
pub const NAME: &str = "here";

/// Default threads per rank.
pub const THREADS: usize = 1;

/// Default passes over all kernels, alternating one rank and all ranks at work; the median counts.
pub const PASSES: usize = 3;

/// Least and most repeats of a kernel in a pass.
const REPEATS: [usize; 2] = [2, 6];

/// The same within a budget: what passes through the caches before each repeat takes longer than most kernels, and many
/// kernels, measured roughly, say more than a few.
const REPEATS_IN_BUDGET: [usize; 2] = [2, 2];

/// Largest collective that is measured within a budget; larger ones follow from the fit.
const COLLECTIVE_IN_BUDGET: Bytes = Bytes(16 << 20);

/// Most kernels of a family that a calibration measures.
const FAMILY_MAX: usize = 160;

/// Key of measured reads.
const READS: &str = "a file that the system holds in memory";
/// What copies of samples are measured of.
const COPIES: &str = "samples in the memory of the ranks";

/// Sizes of timed reads.
const READ_SIZES: [Bytes; 5] = [
    Bytes(64 << 10),
    Bytes(256 << 10),
    Bytes(1 << 20),
    Bytes(4 << 20),
    Bytes(16 << 20),
];

/// Results of a calibration.
pub struct CalibrationRun {
    /// Measured kernels.
    pub kernels: Vec<KernelSample>,
    /// Costs, with fits of messages, collectives and reads.
    pub costs: MeasuredCosts,
    /// Messages and collectives between hosts, by how many ranks of each host take part; see [`NetworkTimes`].
    pub network: BTreeMap<usize, MeasuredCosts>,
    /// Copy bandwidth of each rank, with all ranks at work.
    pub memory: BytesPerSecond,
}

impl CalibrationRun {
    /// Fits what was measured between hosts.
    ///
    /// Errors: times that cannot be fitted.
    pub fn add_network(&mut self, times: &NetworkTimes) -> Result<(), LocalError> {
        for (&ranks_of_host, links) in times {
            let fits = self.network.entry(ranks_of_host).or_default();
            fits.add_links(links)?;
        }
        Ok(())
    }
}

/// Kernels of fewer flops say little about the rate of a machine.
const FLOPS_MIN: f64 = 1e7;

/// Ranks on this machine, with all measurements of them.
pub struct LocalMachine<'c> {
    context: &'c Context,
    kernels: KernelSet,
    ranks: usize,
    threads: usize,
    cores: Vec<usize>,
    library: Option<String>,
    pinned: Vec<usize>,
    host: Host,
    input: InputSource,
    setting: Conditions,
    links: Conditions,
    measurements: Measurements,
    /// Measurements of one rank, with the other cores idle.
    alone: Measurements,
    budget: Arc<MeasuringBudget>,
}

impl<'c> LocalMachine<'c> {
    /// Loads cached measurements of these ranks.
    ///
    /// Errors: too many ranks to measure on this machine.
    pub fn of(
        context: &'c Context,
        kernels: KernelSet,
        ranks: Ranks,
        input: InputSource,
    ) -> Result<Self, LocalError> {
        let most = ranks.most();
        let setting = setting(context.level(), kernels, &ranks);
        let Ranks {
            count: ranks,
            threads,
            cores,
            library,
            pinned,
        } = ranks;
        if ranks > most {
            return Err(LocalError::TooManyRanks {
                ranks,
                threads,
                most,
            });
        }
        let host = Host::local(context.level());
        let links = Conditions {
            backend: links_backend(kernels, library.as_deref()),
            ..setting.clone()
        };
        let (measurements, alone) = cached(context, &setting, &links, false);
        Ok(Self {
            context,
            kernels,
            ranks,
            threads,
            cores,
            library,
            pinned,
            host,
            input,
            measurements,
            links,
            alone,
            setting,
            budget: Arc::new(MeasuringBudget::unlimited()),
        })
    }

    /// The same with a limited time for measurements of kernels: the others are estimated from those that are measured.
    #[must_use]
    pub fn within(mut self, budget: Arc<MeasuringBudget>) -> Self {
        self.budget = budget;
        self.reload();
        self
    }

    /// Whether rough times do, of few repeats.
    fn is_rough(&self) -> bool {
        self.budget.whole().is_some()
    }

    fn reload(&mut self) {
        let by = (self.context, &self.setting, &self.links);
        (self.measurements, self.alone) = cached(by.0, by.1, by.2, self.is_rough());
    }

    /// Predicts a program for these ranks, measuring what is missing.
    pub fn predict(
        &mut self,
        program: &Program,
        with_tasks: bool,
    ) -> Result<Prediction, LocalError> {
        let costs = self.costs(program)?;
        let predicted = predict(program, &costs, Mode::Ranks, 1, with_tasks);
        let mut prediction = predicted.map_err(LocalError::Simulate)?;
        self.budget.predicted(prediction.iteration_seconds);
        let warning = oversubscription(self.ranks, self.threads, at_once(self.cores.len()));
        prediction.limits.splice(0..0, warning);
        Ok(prediction)
    }

    /// The kernels measured so far, for lower bounds.
    pub fn known(&self) -> MeasuredCosts {
        let mut costs = MeasuredCosts::of_kernels(
            &self.measurements.kernels,
            &self.alone.kernels,
            self.ranks * self.threads,
            self.cores.len(),
        );
        if self
            .kernels
            .devices()
            .is_some_and(|devices| devices < self.ranks)
        {
            costs.contention = Contention::Units;
        }
        costs
    }

    /// The rate of the fastest kernel measured so far with all ranks at work, but for small ones.
    pub fn fastest_kernel(&self) -> Option<FlopsPerSecond> {
        let all = &self.measurements;
        let rates = all.kernels.iter().flat_map(|(signature, times)| {
            let flops = all.shapes.get(signature).map_or(0.0, |shape| shape.flops);
            let times = times.values().filter(move |_| flops > FLOPS_MIN);
            times.map(move |seconds| FlopsPerSecond(flops / seconds.0))
        });
        rates.max_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The costs of a program, measuring what is missing, as far as the budget allows.
    pub fn costs(&mut self, program: &Program) -> Result<MeasuredCosts, LocalError> {
        let budget = Arc::clone(&self.budget);
        budget.measuring(|| self.measure_kernels(&[program], program.dtype, None))?;
        self.measure_links(program)?;
        self.measure_input()?;
        let mut costs = self.fits()?;
        costs.model = self.model_of_others(program, &costs);
        Ok(costs)
    }

    /// A model of those kernels of a program that are not measured, by the measured ones of their families; none if all are.
    fn model_of_others(&self, program: &Program, costs: &MeasuredCosts) -> Option<KernelModel> {
        let mut families = BTreeSet::new();
        for body in &program.bodies {
            for task in &body.tasks {
                let Work::Compute {
                    kernel, algorithm, ..
                } = &task.work
                else {
                    continue;
                };
                let shape = KernelShape {
                    kernel,
                    buffers: &body.buffers,
                };
                let key = (shape.signature(), algorithm.0.clone());
                if !costs.kernels.contains_key(&key) {
                    families.insert(Features::of(&shape).family);
                }
            }
        }
        if families.is_empty() {
            return None;
        }
        let shapes = &self.measurements.shapes;
        let all = costs.samples(shapes, &shapes.keys().cloned().collect());
        let is_near = |one: &&KernelSample| families.contains(&one.features.family);
        let near: Vec<KernelSample> = all.iter().filter(is_near).cloned().collect();
        KernelModel::fit(if near.is_empty() { &all } else { &near })
    }

    /// All measurements so far, with fits of messages, collectives and reads.
    fn fits(&self) -> Result<MeasuredCosts, LocalError> {
        let mut costs = self.known();
        if let Some(links) = &self.measurements.links {
            costs.add_links(links)?;
        }
        let times = |what: &str| self.measurements.loads.get(what).map(Vec::as_slice);
        let has_input = !self.input.is_left_out();
        costs.add_reads(times(READS).filter(|_| has_input))?;
        if let (InputSource::DataStore, Some(copies)) = (self.input, times(COPIES)) {
            costs.add_store(copies, self.library.is_some())?;
        }
        Ok(costs)
    }

    fn keep(&mut self, setting: &Conditions, new: &Measurements) {
        self.context.keep_measurements(setting, new);
        self.reload();
    }

    /// Measures kernels of these programs, messages, collectives and memory anew, and reads if they are not
    /// cached. Processes pass the links that they have measured together.
    pub fn calibrate(
        &mut self,
        programs: &[Program],
        links: Option<LinkTimes>,
        passes: usize,
    ) -> Result<CalibrationRun, LocalError> {
        let Some(first) = programs.first() else {
            return Err(LocalError::NoProgram);
        };
        let programs: Vec<&Program> = programs.iter().collect();
        let measured = self.measure_kernels(&programs, first.dtype, Some(passes))?;
        match links {
            Some(links) => self.keep_links(links),
            None => {
                let groups = (2..=self.ranks).collect();
                self.measure_groups((&groups, LinkSizes::ALL), &LinkTimes::default())?;
            }
        }
        self.measure_input()?;
        let bytes = Bytes((2 * self.cache(self.ranks).0).max(64 << 20));
        let memory = measure_memory(self.ranks, bytes);
        Ok(CalibrationRun {
            kernels: self.samples(&measured),
            costs: self.fits()?,
            network: BTreeMap::new(),
            memory: memory?,
        })
    }

    /// Samples of these kernels, with all ranks at work and alone.
    fn samples(&self, measured: &BTreeSet<String>) -> Vec<KernelSample> {
        self.known().samples(&self.measurements.shapes, measured)
    }

    /// Measures kernels that are not cached; with `passes`, measures all again, but no more of a family than a
    /// calibration does. Returns the signatures of what was measured.
    fn measure_kernels(
        &mut self,
        programs: &[&Program],
        dtype: Dtype,
        anew: Option<usize>,
    ) -> Result<BTreeSet<String>, LocalError> {
        let Some(program) = programs.first() else {
            return Ok(BTreeSet::new());
        };
        let precision = match dtype {
            Dtype::F64 => Precision::F64,
            Dtype::Bf16 => Precision::Bf16,
            Dtype::F16 => Precision::F16,
            Dtype::F32 | Dtype::I16 => Precision::F32,
        };
        self.check(program.mesh, precision)?;
        let all = self.measure_series(programs, precision, anew)?;
        Ok(self.keep_series(all))
    }

    /// Passes over kernels that are not measured, or over all anew, alternating all ranks at work and one rank
    /// with the others idle.
    fn measure_series(
        &self,
        programs: &[&Program],
        precision: Precision,
        anew: Option<usize>,
    ) -> Result<Vec<Series>, LocalError> {
        let budget = anew.is_none().then(|| self.budget.of_program()).flatten();
        if budget.is_some_and(|time| time < LEAST_OF_PROGRAM) && !self.known().kernels.is_empty() {
            return Ok(Vec::new());
        }
        let maker = self.kernel_maker(precision);
        let series = |setting: Conditions| Series {
            known: kernels_of(self.context, &setting, self.is_rough()),
            passes: Vec::new(),
            setting,
        };
        let mut all = vec![series(self.setting.clone())];
        if self.ranks > 1 {
            all.push(series(single(&self.setting)));
        }
        let begin = Instant::now();
        for pass in 1..=anew.unwrap_or(PASSES) {
            let so_far = begin.elapsed().as_secs_f64();
            let passes = pass as f64 / (pass - 1) as f64;
            if pass > 1 && budget.is_some_and(|time| so_far * passes > time.0) {
                // The next pass would take longer than what is left.
                break;
            }
            for index in 0..all.len() {
                let series = &all[index];
                if series.passes.first().is_some_and(Vec::is_empty) {
                    // Nothing to measure.
                    continue;
                }
                let part = (index + 1) as f64 / all.len() as f64;
                let deadline = |time: Seconds| begin + Duration::from_secs_f64(part * time.0);
                let bounds = PassBounds {
                    anew,
                    pass,
                    deadline: budget.filter(|_| pass == 1).map(deadline),
                    wanted: budget.map_or(Wanted::All, |_| wanted(&all, index)),
                };
                let measured = self.measure_pass(programs, &maker, series, &bounds)?;
                all[index].passes.push(measured);
            }
        }
        Ok(all)
    }

    /// The cores that all ranks are pinned to while they are measured; empty if they are not.
    fn hold_cores(&self) -> Vec<usize> {
        match self.library {
            Some(_) => self.pinned.clone(),
            None => self
                .context
                .hold_cores(self.kernels, self.ranks * self.threads),
        }
    }

    /// Makes the kernels of a rank on a slot of the cores; `check` has made them before.
    fn kernel_maker(
        &self,
        precision: Precision,
    ) -> impl Fn(Mesh, Rank, usize) -> Box<dyn Kernels> + Sync {
        let (kernels, slots) = (self.kernels, self.ranks);
        let processing = self.context.processing(self.threads);
        let pinned = self.hold_cores();
        move |mesh, rank, slot| {
            let own = CoreSlot::among(slot, slots, &pinned);
            let made = kernels.kernels(precision, mesh, rank, &own, &processing);
            made.unwrap_or_else(|error| panic!("kernels that were made before: {error}"))
        }
    }

    /// Measures configurations of the kernels of these programs that can be cut, with all ranks at work: all
    /// implementations and micro-batches of a policy, then the best configurations of these.
    pub fn tune(
        &mut self,
        programs: &[&Program],
        menu: &dyn Menu,
        policy: DivisionPolicy,
    ) -> Result<(), LocalError> {
        let Some(program) = programs.first() else {
            return Err(LocalError::NoProgram);
        };
        self.check(program.mesh, Precision::F32)?;
        let variants = Variants::new(programs, menu, policy);
        self.measure_variants(&variants.micro_batches(), "implementations")?;
        let configurations = variants.configurations(&self.measurements);
        self.measure_variants(&configurations, "configurations")
    }

    /// Passes over the kernels of variants that are not known.
    fn measure_variants(&mut self, variants: &[Variant], what: &str) -> Result<(), LocalError> {
        let maker = self.kernel_maker(Precision::F32);
        let options = self.options(self.ranks);
        let known = &self.measurements;
        let unknown = |variant: &&Variant| variant.kernels.iter().any(|key| !known.has(key));
        let variants: Vec<&Variant> = variants.iter().filter(unknown).collect();
        let all = variants.len() * PASSES;
        let mut passes: Vec<Vec<Vec<KernelTime>>> = vec![Vec::new(); variants.len()];
        name_work("measuring kernels");
        let rounds = (0..PASSES).flat_map(|_| variants.iter().enumerate());
        for (done, (index, variant)) in rounds.enumerate() {
            if self.context.is_cancelled() {
                break;
            }
            self.context.before_measuring();
            let is_known = |key: &_| known.has(key) || !variant.kernels.contains(key);
            let one = [&variant.program];
            passes[index].push(measure(&one, &maker, &is_known, &options, &|_, _| {})?);
            let text = format!("measured {} of {all} sets of {what}", done + 1);
            self.context.status(&text, done + 1 == all);
        }
        name_work("");
        let mut new = Measurements::default();
        for passes in &passes {
            new.add(median_of_passes(passes));
        }
        drop(maker);
        self.keep(&self.setting.clone(), &new);
        if self.context.is_cancelled() {
            return Err(LocalError::Interrupted);
        }
        Ok(())
    }

    /// Its part of the caches that each of this many ranks at work has.
    fn cache(&self, at_work: usize) -> Bytes {
        self.host.cache_of_rank(at_work, self.threads)
    }

    /// Options of measurements with this many ranks at work.
    fn options(&self, at_work: usize) -> Options {
        Options {
            concurrency: at_work,
            cache: self.cache(self.ranks),
            cache_at_work: self.cache(at_work),
            repeats: REPEATS,
            ..Options::default()
        }
    }

    /// One pass over the kernels of a series; empty if there is nothing to measure.
    fn measure_pass(
        &self,
        programs: &[&Program],
        maker: &KernelMaker<'_>,
        series: &Series,
        bounds: &PassBounds,
    ) -> Result<Vec<KernelTime>, LocalError> {
        let &PassBounds { anew, pass, .. } = bounds;
        let options = Options {
            family_max: anew.map_or(usize::MAX, |_| FAMILY_MAX),
            deadline: bounds.deadline,
            repeats: if self.is_rough() {
                REPEATS_IN_BUDGET
            } else {
                REPEATS
            },
            ..self.options(series.setting.at_work)
        };
        let working = match series.setting.at_work {
            1 => "alone".to_owned(),
            ranks => format!("{ranks} at a time"),
        };
        let passes = anew.unwrap_or(PASSES);
        let within = self.budget.whole().map_or_else(String::new, |time| {
            format!(", at most {:.0} s in all", time.0)
        });
        let progress = |done, all| {
            let text = format!(
                "measured {done} of {all} kernels {working}, pass {pass} of {passes}{within}"
            );
            self.context.status(&text, done == all);
        };
        let is_known = |key: &KernelKey| {
            let is_known = anew.is_none() && series.known.has(key) || !bounds.wanted.contains(key);
            if !is_known {
                self.context.before_measuring();
            }
            is_known
        };
        name_work("measuring kernels");
        let measured = measure(programs, maker, &is_known, &options, &progress)?;
        name_work("");
        Ok(measured)
    }

    /// Caches the medians of the passes. Returns the signatures of the measured kernels.
    fn keep_series(&mut self, all: Vec<Series>) -> BTreeSet<String> {
        let mut signatures = BTreeSet::new();
        for Series {
            setting, passes, ..
        } in all
        {
            let measured = median_of_passes(&passes);
            signatures.extend(measured.iter().map(|one| one.key.signature.clone()));
            if !measured.is_empty() {
                let mut new = Measurements::default();
                new.add(measured);
                let setting = if self.is_rough() {
                    rough(&setting)
                } else {
                    setting
                };
                self.keep(&setting, &new);
            }
        }
        signatures
    }

    /// Makes the kernels of a rank once, so that a failure is an error and not a panic.
    ///
    /// On a separate thread, because the thread that makes them stays pinned.
    fn check(&self, mesh: Mesh, precision: Precision) -> Result<(), LocalError> {
        let processing = self.context.processing(self.threads);
        let own = CoreSlot::among(0, self.ranks, &self.hold_cores());
        let make = || {
            let made = self.kernels.kernels(precision, mesh, 0, &own, &processing);
            made.map(drop).map_err(LocalError::Kernels)
        };
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("kernels".to_owned());
            let thread = builder.spawn_scoped(scope, make);
            let thread = thread.map_err(|source| LocalError::NoThread { source })?;
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Measured messages and collectives.
    pub fn links(&self) -> LinkTimes {
        self.measurements.links.clone().unwrap_or_default()
    }

    /// Caches links that processes have measured together.
    pub fn keep_links(&mut self, links: LinkTimes) {
        if links == LinkTimes::default() {
            return;
        }
        let new = Measurements {
            links: Some(links),
            ..Measurements::default()
        };
        self.keep(&self.links.clone(), &new);
    }

    fn measure_links(&mut self, program: &Program) -> Result<(), LocalError> {
        if self.library.is_some() {
            // Processes have measured all sizes of groups together.
            return Ok(());
        }
        let mut groups = program.group_sizes();
        groups.retain(|&members| members <= self.ranks);
        let mut sizes = LinkSizes::of(program);
        if self.is_rough() {
            sizes.collective = sizes.collective.min(COLLECTIVE_IN_BUDGET);
        }
        self.measure_groups((&groups, sizes), &self.links())
    }

    fn measure_groups(
        &mut self,
        wanted: (&BTreeSet<usize>, LinkSizes),
        known: &LinkTimes,
    ) -> Result<(), LocalError> {
        let patience = self
            .context
            .spin(self.ranks, self.threads, self.cores.len());
        let transports = |mesh: Mesh| -> Vec<Box<dyn Transport + Send>> {
            let one = |transport| -> Box<dyn Transport + Send> { Box::new(transport) };
            connect(mesh, patience).into_iter().map(one).collect()
        };
        let progress = |what: &str| {
            self.context.before_measuring();
            let work = format!("measuring {what}");
            name_work(&work);
            self.context.status(&work, false);
        };
        let arenas = |rank: Rank, bytes: Bytes| self.kernels.arena(rank, rank, bytes);
        let made = (&transports as _, &arenas as _, self.cache(self.ranks));
        let links = measure_links(self.ranks, wanted, known, made, &progress)?;
        name_work("");
        if links != LinkTimes::default() {
            let done = "measured messages and collectives";
            self.context.status(done, true);
            self.keep_links(links);
        }
        Ok(())
    }

    /// Measures what the input takes: reads, and copies where samples stay in memory.
    fn measure_input(&mut self) -> Result<(), LocalError> {
        let needed: &[&str] = match self.input {
            InputSource::Ignored | InputSource::Loaders => &[],
            InputSource::FileSystem => &[READS],
            InputSource::DataStore => &[READS, COPIES],
        };
        for &what in needed {
            if self.measurements.loads.contains_key(what) {
                continue;
            }
            self.context.before_measuring();
            let times = if what == COPIES {
                copies(self.context, self.ranks)?
            } else {
                reads(self.context, self.ranks)?
            };
            let new = Measurements {
                loads: [(what.to_owned(), times)].into(),
                ..Measurements::default()
            };
            self.keep(&self.setting.clone(), &new);
        }
        Ok(())
    }
}

/// Under which name times of messages are kept: they depend on the library and on the memory that they are sent from.
fn links_backend(kernels: KernelSet, library: Option<&str>) -> String {
    let own = kernels.backend();
    match (library, kernels.devices()) {
        (Some(library), None) => library.to_owned(),
        (Some(library), Some(_)) => format!("{library}, from and to {own}"),
        (None, None) => own,
        (None, Some(_)) => format!("from and to {own}"),
    }
}

/// Measurements of all ranks at work, and of one with the others idle.
fn cached(
    context: &Context,
    setting: &Conditions,
    links: &Conditions,
    with_rough: bool,
) -> (Measurements, Measurements) {
    let mut together = kernels_of(context, setting, with_rough);
    together.links = context.measurements(links).links;
    (together, kernels_of(context, &single(setting), with_rough))
}

/// Measurements under a setting; on request rough ones where there are no others.
fn kernels_of(context: &Context, setting: &Conditions, with_rough: bool) -> Measurements {
    let whole = context.measurements(setting);
    if !with_rough {
        return whole;
    }
    let mut all = context.measurements(&rough(setting));
    all.merge(&whole);
    all
}

/// Under which conditions times of few repeats are kept, so that they never stand for others.
fn rough(setting: &Conditions) -> Conditions {
    Conditions {
        backend: format!("{}, few repeats", setting.backend),
        ..setting.clone()
    }
}

/// The same setting with one rank at work.
fn single(setting: &Conditions) -> Conditions {
    Conditions {
        at_work: 1,
        ..setting.clone()
    }
}

/// A warning if there are more ranks than cores.
pub fn sharing(ranks: usize) -> Option<String> {
    oversubscription(ranks, THREADS, at_once(cores().len()))
}

/// Memory limit of each rank on the processor: the available memory divided by the ranks.
pub fn memory(context: &Context, ranks: usize) -> Bytes {
    match Host::local(context.level()).memory_free() {
        Some(available) => Bytes(available.0 / ranks as u64),
        None => Bytes(u64::MAX),
    }
}

/// Times reads of a temporary file.
fn reads(context: &Context, ranks: usize) -> Result<Vec<TransferTime>, LocalError> {
    context.status("measuring reads", true);
    let largest = READ_SIZES[READ_SIZES.len() - 1].0;
    let file = context.scratch_file(&vec![1u8; 2 * largest as usize])?;
    let read = |_: Rank, turn: usize, bytes: Bytes| {
        let mut values = vec![0u8; bytes.0 as usize];
        let offset = (turn as u64 * 4096) % largest;
        file.read_exact_at(&mut values, offset)
    };
    Ok(measure_load(ranks, &READ_SIZES, &read)?)
}

/// Times copies of parts of memory.
fn copies(context: &Context, ranks: usize) -> Result<Vec<TransferTime>, LocalError> {
    context.status("measuring copies", true);
    let largest = READ_SIZES[READ_SIZES.len() - 1].0 as usize;
    let kept = vec![1u8; 2 * largest];
    let copy = |_: Rank, turn: usize, bytes: Bytes| {
        let start = (turn * 4096) % largest;
        let values = kept[start..start + bytes.0 as usize].to_vec();
        std::hint::black_box(values);
        Ok(())
    };
    Ok(measure_load(ranks, &READ_SIZES, &copy)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use partita_site::Environment;

    #[test]
    fn the_thread_that_asks_stays_on_all_cores() {
        let before = core_affinity::get_core_ids().unwrap();
        let context = Context::new(Environment::default());
        let here = LocalMachine::of(
            &context,
            KernelSet::CPU,
            Ranks::threads(1, 1),
            InputSource::Ignored,
        )
        .unwrap();
        here.check(Mesh::new([1; 7]), Precision::F32).unwrap();
        assert_eq!(core_affinity::get_core_ids().unwrap(), before);
    }
}
