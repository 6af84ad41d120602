//! Times of kernels.

use crate::TuneError;
use crate::barrier::{Barrier, EarlyEnd, median_of_slowest, run_ranks};
use crate::benchmark::{KernelBenchmark, KernelKey, benchmarks};
use crate::operand_fill::{fill_operands, touch};
use crate::other_memory::OtherMemory;
use partita_oracle::Features;
use partita_program::Program;
use partita_run::{Arena, Inputs, Kernels};
use partita_space::{Bytes, Mesh, Rank, Seconds, upper_median};
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// Longest time that a benchmark waits after an access; longer ones make no difference.
const AGE_MAX: Seconds = Seconds(2e-3);

/// Kernels that take longer hardly gain by code that is in the caches.
const SHORT: Seconds = Seconds(2e-3);

/// Most bytes of the operands of a short kernel.
const OPERANDS_OF_SHORT: Bytes = Bytes(32 << 20);

/// Makes the kernels of a rank, on the thread that will run them.
///
/// The last argument is the slot: the index of the thread among those that measure at the same time. All of
/// them make kernels of the same rank, so cores must be chosen by slot.
pub type KernelMaker<'a> = dyn Fn(Mesh, Rank, usize) -> Box<dyn Kernels> + Sync + 'a;

/// Options of kernel benchmarks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Ranks that run the kernel at the same time, as in the run.
    pub concurrency: usize,
    /// Its part of the caches that a rank has beside all others, idle ones included.
    pub cache: Bytes,
    /// Its part of the caches that a rank has beside those that run the kernel.
    pub cache_at_work: Bytes,
    /// Time for all repeats of a short kernel.
    pub budget: Seconds,
    /// Fewest and most repeats of a kernel.
    pub repeats: [usize; 2],
    /// Most kernels of a family. Larger families are subsampled so that no shape is far from a measured one.
    pub family_max: usize,
    /// When no other kernel is begun. The first is measured in any case, and kernels of which most is learned come first.
    pub deadline: Option<Instant>,
}

/// The measured time of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Identity of the kernel.
    pub key: KernelKey,
    /// Its features.
    pub features: Features,
    /// The median over repeats of the slowest rank's time.
    pub seconds: Seconds,
    /// Bytes of its workspace, 0 without one, if known.
    pub workspace: Option<Bytes>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrency: 1,
            cache: Bytes(32 << 20),
            cache_at_work: Bytes(32 << 20),
            budget: Seconds(0.03),
            repeats: [5, 15],
            family_max: usize::MAX,
            deadline: None,
        }
    }
}

/// Times every kernel of the programs that is not known yet, once for each signature and algorithm.
///
/// Ranks share memory bandwidth and cores, so `concurrency` ranks run the kernel at the same time, each on its
/// own memory. The result is the median over the repeats of the slowest rank's time, after a warm-up. Before
/// every repeat the caches are brought to the state in which a step leaves them: as many bytes as the other
/// buffers of the step have (at most four times the caches) pass through them twice; a short kernel runs on
/// other operands, since its code has run for other layers; then come the operands that an LRU cache
/// of a rank would still hold, each as long before the kernel as in the step, but at most two milliseconds. If a
/// kernel occurs more than once, the occurrence with the median of resident bytes is measured. `progress` gets
/// the number of kernels that are done, and of all. After the deadline of the options, what is left is not measured.
///
/// Errors: kernels that are not pinned, or that fail.
pub fn measure(
    programs: &[&Program],
    kernels: &KernelMaker<'_>,
    is_known: &dyn Fn(&KernelKey) -> bool,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<KernelTime>, TuneError> {
    let benchmarks = benchmarks(programs, is_known, options.cache)?;
    let mut benchmarks = subsampled(benchmarks, options.family_max);
    if options.deadline.is_some() {
        benchmarks = most_informative_first(benchmarks);
    }
    if benchmarks.is_empty() {
        return Ok(Vec::new());
    }
    let repeats: Vec<AtomicUsize> = benchmarks.iter().map(|_| AtomicUsize::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let ranks = options.concurrency.max(1);
    let times = run_ranks("kernels", vec![(); ranks], |barrier, slot, ()| {
        let mut runner = RankBench::new(&benchmarks, options, slot)?;
        let mut times = Vec::with_capacity(benchmarks.len());
        for (index, benchmark) in benchmarks.iter().enumerate() {
            if slot == 0 && index > 0 && options.deadline.is_some_and(|end| Instant::now() >= end) {
                is_over.store(true, Ordering::Relaxed);
            }
            // All ranks measure the same kernels.
            barrier.wait()?;
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            runner.prepare(benchmark, kernels)?;
            times.push(runner.run(benchmark, barrier, &repeats[index])?);
            if slot == 0 {
                progress(index + 1, benchmarks.len());
            }
        }
        Ok(times)
    })?;
    let one = |(index, benchmark): (usize, &KernelBenchmark)| {
        let all: Vec<&[f64]> = times.iter().map(|rank| rank[index].as_slice()).collect();
        KernelTime {
            key: benchmark.key.clone(),
            features: benchmark.features.clone(),
            seconds: Seconds(median_of_slowest(&all)),
            workspace: Some(benchmark.workspace_bytes()),
        }
    };
    let measured = times.first().map_or(0, Vec::len);
    Ok(benchmarks[..measured].iter().enumerate().map(one).collect())
}

/// The median time of each kernel of the first of several passes, over those that have it.
///
/// Disturbances last seconds or minutes, so passes over all kernels are more robust than as many repeats of each
/// kernel in a row.
pub fn median_of_passes(passes: &[Vec<KernelTime>]) -> Vec<KernelTime> {
    let Some(first) = passes.first() else {
        return Vec::new();
    };
    let mut times: BTreeMap<&KernelKey, Vec<f64>> = BTreeMap::new();
    for measured in passes.iter().flatten() {
        times
            .entry(&measured.key)
            .or_default()
            .push(measured.seconds.0);
    }
    let one = |measured: &KernelTime| KernelTime {
        seconds: Seconds(upper_median(&times[&measured.key])),
        ..measured.clone()
    };
    first.iter().map(one).collect()
}

/// The heaviest kernel of each family, then all others, the heaviest first: what has no time is estimated from those of its
/// family, and of a step those decide that take most of it.
fn most_informative_first(benchmarks: Vec<KernelBenchmark>) -> Vec<KernelBenchmark> {
    let mut ordered = benchmarks;
    ordered.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let mut families = BTreeSet::new();
    let is_first = |one: &KernelBenchmark| families.insert(one.features.family.clone());
    let (mut firsts, others): (Vec<_>, Vec<_>) = ordered.into_iter().partition(is_first);
    firsts.extend(others);
    firsts
}

/// At most this many of each family, in their order, chosen farthest first.
fn subsampled(benchmarks: Vec<KernelBenchmark>, most: usize) -> Vec<KernelBenchmark> {
    let mut families: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, benchmark) in benchmarks.iter().enumerate() {
        families
            .entry(&benchmark.features.family)
            .or_default()
            .push(index);
    }
    let mut is_kept = vec![false; benchmarks.len()];
    for members in families.into_values() {
        let shapes: Vec<&[f64]> = members
            .iter()
            .map(|&index| &benchmarks[index].features.shape[..])
            .collect();
        for at in farthest_first(&shapes, most) {
            is_kept[members[at]] = true;
        }
    }
    let numbered = benchmarks.into_iter().zip(is_kept);
    numbered
        .filter_map(|(benchmark, kept)| kept.then_some(benchmark))
        .collect()
}

/// Farthest-first traversal: the first point, then repeatedly the one farthest from all chosen ones. The largest
/// distance of a point from the chosen ones is at most twice the optimum.
/// Source: T. F. Gonzalez, Clustering to minimize the maximum intercluster distance (1985).
fn farthest_first(points: &[&[f64]], most: usize) -> Vec<usize> {
    if points.len() <= most {
        return (0..points.len()).collect();
    }
    let mut nearest = vec![f64::INFINITY; points.len()];
    let mut chosen = Vec::with_capacity(most);
    let mut next = 0;
    while chosen.len() < most {
        chosen.push(next);
        for (distance, point) in nearest.iter_mut().zip(points) {
            let squares = point
                .iter()
                .zip(points[next])
                .map(|(a, b)| (a - b) * (a - b));
            *distance = distance.min(squares.sum());
        }
        nearest[next] = f64::NEG_INFINITY;
        // The first of equals.
        let farthest = (0..points.len())
            .rev()
            .max_by(|&a, &b| nearest[a].total_cmp(&nearest[b]));
        next = farthest.unwrap_or(0);
    }
    chosen
}

/// The state of a thread that runs benchmarks.
struct RankBench {
    slot: usize,
    /// Of the largest arena.
    arena_bytes: Bytes,
    /// Stands for the other buffers of a step.
    other: OtherMemory,
    budget: f64,
    repeats: [usize; 2],
    /// Whether no other rank runs kernels.
    is_alone: bool,
    kernels: Option<RankKernels>,
}

/// The kernels of a rank, and the arena on which they work.
struct RankKernels {
    mesh: Mesh,
    rank: Rank,
    kernels: Box<dyn Kernels>,
    arena: Arena,
    /// Other operands of short kernels; none on a device, whose caches are left alone.
    other_operands: Option<Arena>,
}

impl RankBench {
    fn new(
        benchmarks: &[KernelBenchmark],
        options: &Options,
        slot: usize,
    ) -> Result<Self, TuneError> {
        let arena = benchmarks
            .iter()
            .map(|benchmark| benchmark.body.arena)
            .max();
        let other_bytes = benchmarks
            .iter()
            .map(|benchmark| benchmark.other_bytes.0)
            .max()
            .unwrap_or(0);
        Ok(Self {
            slot,
            arena_bytes: arena.unwrap_or_default(),
            other: OtherMemory::new("kernels", slot, options.cache_at_work, Bytes(other_bytes))?,
            budget: options.budget.0,
            repeats: options.repeats,
            is_alone: options.concurrency <= 1,
            kernels: None,
        })
    }

    fn prepare(
        &mut self,
        benchmark: &KernelBenchmark,
        maker: &KernelMaker<'_>,
    ) -> Result<(), TuneError> {
        let is_same =
            |made: &RankKernels| (made.mesh, made.rank) == (benchmark.mesh, benchmark.rank);
        if !self.kernels.as_ref().is_some_and(is_same) {
            // End the old thread team before a new one starts.
            self.kernels = None;
            let (mesh, rank, slot) = (benchmark.mesh, benchmark.rank, self.slot);
            let (kernels, bytes) = (maker(mesh, rank, slot), self.arena_bytes);
            let arena = |bytes: Bytes| {
                kernels.arena(rank, bytes).map_err(|_| TuneError::Memory {
                    rank: slot,
                    what: "kernels",
                    bytes,
                })
            };
            let own = arena(bytes)?;
            let other_operands = if own.is_on_device() {
                None
            } else {
                Some(arena(bytes.min(OPERANDS_OF_SHORT))?)
            };
            self.kernels = Some(RankKernels {
                mesh,
                rank,
                kernels,
                arena: own,
                other_operands,
            });
        }
        let made = made(&mut self.kernels);
        let arenas = made.other_operands.iter_mut().chain([&mut made.arena]);
        for arena in arenas.filter(|arena| arena.bytes() >= benchmark.body.arena) {
            let views = benchmark.body.tasks[0].accesses();
            fill_operands(
                &arena.memory(&benchmark.body),
                benchmark.kernel().0,
                views.into_iter().map(|(view, _)| view),
            );
        }
        Ok(())
    }

    /// Seconds by repeat.
    fn run(
        &mut self,
        benchmark: &KernelBenchmark,
        barrier: &Barrier,
        repeats: &AtomicUsize,
    ) -> Result<Vec<f64>, EarlyEnd> {
        barrier.wait()?;
        let first = self.execute(benchmark)?;
        if self.slot == 0 {
            let fit = (self.budget / first.max(1e-9)) as usize;
            let [fewest, most] = self.repeats;
            let fit = fit.clamp(fewest, most);
            repeats.store(fit, Ordering::Relaxed);
        }
        barrier.wait()?;
        let repeats = repeats.load(Ordering::Relaxed);
        let mut times = Vec::with_capacity(repeats);
        for _ in 0..repeats {
            self.prepare_caches(benchmark, first < SHORT.0)?;
            // In a step the previous kernel has just ended; here the worker threads may be asleep.
            made(&mut self.kernels).kernels.wake();
            barrier.wait()?;
            times.push(self.execute(benchmark)?);
        }
        Ok(times)
    }

    fn prepare_caches(
        &mut self,
        benchmark: &KernelBenchmark,
        is_short: bool,
    ) -> Result<(), TuneError> {
        let memory = made(&mut self.kernels).arena.memory(&benchmark.body);
        fill_operands(
            &memory,
            benchmark.kernel().0,
            benchmark.read_write.iter().copied(),
        );
        self.other.pass(benchmark.other_bytes);
        let made = made(&mut self.kernels);
        let others = made.other_operands.as_mut();
        let others = others.filter(|arena| is_short && arena.bytes() >= benchmark.body.arena);
        if let Some(arena) = others {
            execute(&mut *made.kernels, arena, benchmark, self.is_alone)?;
        }
        let memory = made.arena.memory(&benchmark.body);
        // Resident operands age as in a step, since other processes and virtual machines may evict them from
        // a shared cache.
        let of_age = |age: Seconds| age.0.min(AGE_MAX.0);
        let oldest = benchmark.warm.first().map_or(0.0, |&(_, age)| of_age(age));
        let start = Instant::now();
        let wait_for_age = |age: f64| {
            while start.elapsed().as_secs_f64() < oldest - age {
                std::hint::spin_loop();
            }
        };
        for &(ref view, age) in &benchmark.warm {
            wait_for_age(of_age(age));
            black_box(touch(&memory, &benchmark.body, view));
        }
        wait_for_age(0.0);
        Ok(())
    }

    fn execute(&mut self, benchmark: &KernelBenchmark) -> Result<f64, TuneError> {
        let made = made(&mut self.kernels);
        execute(
            &mut *made.kernels,
            &mut made.arena,
            benchmark,
            self.is_alone,
        )
    }
}

/// Seconds of a kernel on the operands in an arena; `is_alone` if no other rank runs kernels.
fn execute(
    kernels: &mut dyn Kernels,
    arena: &mut Arena,
    benchmark: &KernelBenchmark,
    is_alone: bool,
) -> Result<f64, TuneError> {
    let (kernel, algorithm, workspace) = benchmark.kernel();
    let memory = arena.memory(&benchmark.body);
    let inputs = Inputs {
        step: 1,
        epoch: 0,
        seed: 1,
        learning_rate: 1e-4,
        loss_scale: None,
        skipped: 0,
        samples: (0..benchmark.batch).collect(),
        next_samples: Vec::new(),
        next_epoch: 0,
    };
    let start = Instant::now();
    let end = kernels.execute(kernel, algorithm, workspace, &memory, &inputs, &mut || true);
    let end = end.and_then(|_| kernels.finish());
    let seconds = start.elapsed().as_secs_f64();
    match end {
        // In a step a device is given kernels ahead, so that it does not wait between them; but ranks that share it
        // wait for each other.
        Ok(spans) => Ok(match spans.last() {
            Some(span) if is_alone => span.ran.0,
            Some(_) | None => seconds,
        }),
        Err(source) => Err(TuneError::Kernel {
            signature: benchmark.key.signature.clone(),
            algorithm: benchmark.key.algorithm.clone(),
            source: Box::new(source),
        }),
    }
}

fn made(kernels: &mut Option<RankKernels>) -> &mut RankKernels {
    kernels.as_mut().expect("kernels are made before they run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn farthest_first_leaves_no_point_far_away() {
        let mut points: Vec<[f64; 2]> = (0..100).map(|at| [0.01 * f64::from(at), 0.0]).collect();
        points.extend([[0.5, 9.0], [7.0, 9.0]]);
        let shapes: Vec<&[f64]> = points.iter().map(|point| &point[..]).collect();
        let mut chosen = farthest_first(&shapes, 4);
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 99, 100, 101]);
        // If there are no more than allowed, all are kept in their order.
        assert_eq!(farthest_first(&shapes[..4], 4), [0, 1, 2, 3]);
        // Equal points are distinct.
        let same = [shapes[0]; 5];
        assert_eq!(farthest_first(&same, 3), [0, 1, 2]);
    }
}
