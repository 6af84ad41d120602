//! Times of kernels.

use crate::TuneError;
use crate::contents::{fill, warm};
use crate::gate::{Gate, Stop, median_of_slowest, memory_of, together, zeros};
use crate::job::{Job, KernelKey, jobs};
use partita_oracle::Features;
use partita_program::Program;
use partita_run::{Arena, Inputs, Kernels};
use partita_space::{Bytes, Mesh, Rank, Seconds, upper_median};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What was touched longer ago was so at the mercy of others that more time makes no difference.
const AGE_MAX: Seconds = Seconds(2e-3);

/// Makes the kernels of a rank, on the thread that will run them.
///
/// The last argument is the slot: which one it is of the threads that measure at the same time. All
/// of them make kernels of the same rank, so cores are to be chosen by slot.
pub type KernelMaker<'a> = dyn Fn(Mesh, Rank, usize) -> Box<dyn Kernels> + Sync + 'a;

/// How kernels are measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Ranks that run the kernel at the same time, as they will in the run.
    pub concurrency: usize,
    /// Ranks that share the caches, those that wait for others among them; no fewer than run the kernel.
    pub sharing: usize,
    /// Bytes that empty the caches of the machine, twice what they hold, over all ranks; a step that
    /// moves less itself empties them less.
    pub flush: Bytes,
    /// What the repeats of a short kernel may take in all.
    pub budget: Seconds,
    /// Fewest and most repeats of a kernel.
    pub repeats: [usize; 2],
    /// Most kernels of a family; of more, as many are taken as leave no shape far from theirs.
    pub family_max: usize,
}

/// The time of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Which one.
    pub key: KernelKey,
    /// Its shape.
    pub features: Features,
    /// The median over repeats of the slowest rank's time.
    pub seconds: Seconds,
}

impl Options {
    fn cache_of_a_rank(&self) -> Bytes {
        let sharing = self.sharing.max(self.concurrency).max(1);
        // What empties the caches is twice what they hold.
        Bytes(self.flush.0 / 2 / sharing as u64)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            concurrency: 1,
            sharing: 1,
            flush: Bytes(64 << 20),
            budget: Seconds(0.03),
            repeats: [5, 15],
            family_max: usize::MAX,
        }
    }
}

/// Times every kernel of the programs that is not known yet, once for each signature and algorithm.
///
/// Ranks share the memory's bandwidth and the cores, so `concurrency` ranks run the kernel together,
/// each on its own memory, and the slowest counts, as it does in a step: the result is the median
/// over the repeats of the slowest rank's time, after one run that does not count. Before every
/// repeat the caches are brought to the state in which a step leaves them: as many bytes as the step's
/// other buffers hold (at most [`Options::flush`]) pass through them, then those operands of the kernel that
/// the caches of a rank would still hold if they forget what was not touched for longest, each as long ago
/// as in the step but for at most two milliseconds. Where a kernel occurs more than once, the occurrence of
/// which caches hold neither most nor least counts. `progress` is told how many are done, of how many.
/// Errors: kernels that are not pinned, or that fail.
pub fn measure(
    programs: &[&Program],
    kernels: &KernelMaker<'_>,
    is_known: &dyn Fn(&KernelKey) -> bool,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Measured>, TuneError> {
    let jobs = jobs(programs, is_known, options.cache_of_a_rank())?;
    let jobs = thinned(jobs, options.family_max);
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let repeats: Vec<AtomicUsize> = jobs.iter().map(|_| AtomicUsize::new(0)).collect();
    let ranks = options.concurrency.max(1);
    let times = together("kernels", vec![(); ranks], |gate, slot, ()| {
        let mut bench = Bench::new(&jobs, options, slot)?;
        let mut times = Vec::with_capacity(jobs.len());
        for (index, job) in jobs.iter().enumerate() {
            bench.prepare(job, kernels);
            times.push(bench.run(job, gate, &repeats[index])?);
            if slot == 0 {
                progress(index + 1, jobs.len());
            }
        }
        Ok(times)
    })?;
    let one = |(index, job): (usize, &Job)| {
        let all: Vec<&[f64]> = times.iter().map(|rank| rank[index].as_slice()).collect();
        Measured {
            key: job.key.clone(),
            features: job.features.clone(),
            seconds: Seconds(median_of_slowest(&all)),
        }
    };
    Ok(jobs.iter().enumerate().map(one).collect())
}

/// Of several measurements of the same kernels, each kernel's middle one.
///
/// What else a machine does comes and goes in seconds or minutes: measurements one after the other, each
/// of all kernels, see it less than one of as many repeats. Panics if they are not of the same kernels.
pub fn middle(passes: &[Vec<Measured>]) -> Vec<Measured> {
    let Some(first) = passes.first() else {
        return Vec::new();
    };
    let one = |(index, measured): (usize, &Measured)| {
        let of_pass = |pass: &Vec<Measured>| {
            let other = &pass[index];
            assert_eq!(other.key, measured.key, "passes over other kernels");
            other.seconds.0
        };
        Measured {
            seconds: Seconds(upper_median(
                &passes.iter().map(of_pass).collect::<Vec<f64>>(),
            )),
            ..measured.clone()
        }
    };
    first.iter().enumerate().map(one).collect()
}

/// At most so many of each family, in their order: those that leave no shape far from all that are kept.
fn thinned(jobs: Vec<Job>, most: usize) -> Vec<Job> {
    let mut families: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, job) in jobs.iter().enumerate() {
        families
            .entry(&job.features.family)
            .or_default()
            .push(index);
    }
    let mut is_kept = vec![false; jobs.len()];
    for members in families.into_values() {
        let shapes: Vec<&[f64]> = members
            .iter()
            .map(|&index| &jobs[index].features.shape[..])
            .collect();
        for at in farthest_first(&shapes, most) {
            is_kept[members[at]] = true;
        }
    }
    let numbered = jobs.into_iter().zip(is_kept);
    numbered
        .filter_map(|(job, kept)| kept.then_some(job))
        .collect()
}

/// The first point, then again and again the one farthest from all before it, at most so many.
/// Source: T. F. Gonzalez, Clustering to minimize the maximum intercluster distance (1985): no choice of as
/// many points brings the largest distance of a point from them below half of what it is here.
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
        // Of equals the first.
        let farthest = (0..points.len())
            .rev()
            .max_by(|&a, &b| nearest[a].total_cmp(&nearest[b]));
        next = farthest.unwrap_or(0);
    }
    chosen
}

/// What a thread measures with.
struct Bench {
    slot: usize,
    arena: Arena,
    /// Stands for the rest of a step.
    other: Vec<u64>,
    budget: f64,
    repeats: [usize; 2],
    kernels: Option<(Mesh, Rank, Box<dyn Kernels>)>,
}

impl Bench {
    fn new(jobs: &[Job], options: &Options, slot: usize) -> Result<Self, TuneError> {
        let arena = jobs.iter().map(|job| job.body.arena).max();
        let rest = jobs.iter().map(|job| job.rest.0).max().unwrap_or(0);
        let flush = options.flush.0 / options.concurrency.max(1) as u64;
        Ok(Self {
            slot,
            arena: memory_of("kernels", slot, arena.unwrap_or_default())?,
            other: zeros("kernels", slot, (rest.min(flush) / 8) as usize)?,
            budget: options.budget.0,
            repeats: options.repeats,
            kernels: None,
        })
    }

    fn prepare(&mut self, job: &Job, maker: &KernelMaker<'_>) {
        let is_same = |(mesh, rank, _): &(Mesh, Rank, _)| (*mesh, *rank) == (job.mesh, job.rank);
        if !self.kernels.as_ref().is_some_and(is_same) {
            // The old team of threads goes before the new one comes.
            self.kernels = None;
            self.kernels = Some((job.mesh, job.rank, maker(job.mesh, job.rank, self.slot)));
        }
        let memory = self.arena.memory(&job.body);
        let views = job.body.tasks[0].accesses();
        fill(
            &memory,
            job.kernel().0,
            views.into_iter().map(|(view, _)| view),
        );
    }

    /// Seconds of each repeat.
    fn run(&mut self, job: &Job, gate: &Gate, repeats: &AtomicUsize) -> Result<Vec<f64>, Stop> {
        gate.wait()?;
        let first = self.execute(job)?;
        if self.slot == 0 {
            let fit = (self.budget / first.max(1e-9)) as usize;
            let [fewest, most] = self.repeats;
            let fit = fit.clamp(fewest, most);
            repeats.store(fit, Ordering::Relaxed);
        }
        gate.wait()?;
        let repeats = repeats.load(Ordering::Relaxed);
        let mut times = Vec::with_capacity(repeats);
        for _ in 0..repeats {
            self.settle_caches(job);
            // In a step the kernel before has just ended; here the workers may have gone to sleep.
            if let Some((_, _, kernels)) = &mut self.kernels {
                kernels.wake();
            }
            gate.wait()?;
            times.push(self.execute(job)?);
        }
        Ok(times)
    }

    fn settle_caches(&mut self, job: &Job) {
        let memory = self.arena.memory(&job.body);
        fill(&memory, job.kernel().0, job.renewed.iter().copied());
        let rest = self.other.len().min((job.rest.0 / 8) as usize);
        // One word of each line of 64 bytes is enough to bring the line in. Kernels write about one byte for
        // two that they read, and what was written goes back to memory when it leaves the caches.
        let mut sum = 0;
        for (line, words) in self.other[..rest].chunks_mut(8).enumerate() {
            if line % 3 == 0 {
                words[0] = words[0].wrapping_add(1);
            } else {
                sum ^= words[0];
            }
        }
        black_box(sum);
        black_box(&self.other);
        // What is held ages as in a step: other processes, and other machines on the same processor, drive
        // it out of a shared cache meanwhile.
        let of_age = |age: Seconds| age.0.min(AGE_MAX.0);
        let oldest = job.warm.first().map_or(0.0, |&(_, age)| of_age(age));
        let start = Instant::now();
        let wait_for_age = |age: f64| {
            while start.elapsed().as_secs_f64() < oldest - age {
                std::hint::spin_loop();
            }
        };
        for &(ref view, age) in &job.warm {
            wait_for_age(of_age(age));
            black_box(warm(&memory, &job.body, view));
        }
        wait_for_age(0.0);
    }

    fn execute(&mut self, job: &Job) -> Result<f64, TuneError> {
        let (kernel, algorithm, workspace) = job.kernel();
        let memory = self.arena.memory(&job.body);
        let inputs = Inputs {
            step: 1,
            epoch: 0,
            seed: 1,
            learning_rate: 1e-4,
            samples: (0..job.batch).collect(),
            next_samples: Vec::new(),
        };
        let kernels = self
            .kernels
            .as_mut()
            .map(|(_, _, kernels)| kernels)
            .expect("kernels are made before they run");
        let start = Instant::now();
        let end = kernels.execute(kernel, algorithm, workspace, &memory, &inputs, &mut || true);
        let seconds = start.elapsed().as_secs_f64();
        match end {
            Ok(_) => Ok(seconds),
            Err(source) => Err(TuneError::Kernel {
                signature: job.key.signature.clone(),
                algorithm: job.key.algorithm.clone(),
                source: Box::new(source),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_wait_keep_their_share_of_the_caches() {
        let share = |concurrency, sharing| {
            let options = Options {
                concurrency,
                sharing,
                flush: Bytes(64 << 20),
                ..Options::default()
            };
            options.cache_of_a_rank()
        };
        assert_eq!(share(1, 1), Bytes(32 << 20));
        assert_eq!(share(1, 2), Bytes(16 << 20));
        assert_eq!(share(2, 2), Bytes(16 << 20));
        // Those that run it share them, whatever else is said.
        assert_eq!(share(4, 2), Bytes(8 << 20));
    }

    #[test]
    fn the_few_that_are_kept_leave_none_far_away() {
        let mut points: Vec<[f64; 2]> = (0..100).map(|at| [0.01 * f64::from(at), 0.0]).collect();
        points.extend([[0.5, 9.0], [7.0, 9.0]]);
        let shapes: Vec<&[f64]> = points.iter().map(|point| &point[..]).collect();
        let mut chosen = farthest_first(&shapes, 4);
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 99, 100, 101]);
        // Of as many as are allowed all are kept, in their order.
        assert_eq!(farthest_first(&shapes[..4], 4), [0, 1, 2, 3]);
        // Points that are the same are not taken for others.
        let same = [shapes[0]; 5];
        assert_eq!(farthest_first(&same, 3), [0, 1, 2]);
    }
}
