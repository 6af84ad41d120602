//! The serving side of a validator: collects the shards of all ranks, evaluates, and reports to rank 0.

use super::super::error::TrainError;
use super::super::forward::{Forward, Prepared};
use super::super::run::Run;
use super::request::ServeRequest;
use super::work_error::WorkError;
use partita_data::{Dataset, Split};
use partita_forecast::StrategyChoice;
use partita_graph::Graph;
use partita_input::{Preparation, Preprocessing, Sampling};
use partita_offload::{Report, ShardHead, Stream, receive_snapshot, send};
use partita_program::{Optimizer, ProgramKind};
use partita_session::{Evaluated, EvaluatedBatch, Progress, RunEnd};
use partita_site::Context;
use partita_site::launch::Launch;
use partita_space::Seconds;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two signs of life.
const HEARTBEAT: Duration = Duration::from_millis(100);

/// What a rank asks of a validator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidatorWork {
    /// Name of the training, the same for all its ranks.
    pub training: String,
    /// The rank.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// The strategy of the training.
    pub strategy: String,
    /// Threads of its ranks.
    pub threads: usize,
    /// Which of how many equal parts of the validation it evaluates.
    pub part: [usize; 2],
    /// Statistics of the transform.
    pub preparation: Preparation,
    /// Names of the channels, in the order in which they are read.
    pub channels: Vec<String>,
    /// Names of the features, likewise.
    pub features: Vec<String>,
    /// The weights of classes that follow from the labels of the training; empty where none do.
    #[serde(default)]
    pub class_weights: Vec<f64>,
}

/// One training, with all its ranks.
pub struct Trainee {
    forward: Forward,
    prepared: OnceLock<Result<Prepared<'static>, Arc<TrainError>>>,
    /// Validation samples that it evaluates.
    samples: Range<usize>,
    ranks: usize,
    state: Mutex<State>,
    /// Shards taken and mini-batches evaluated.
    done: AtomicU64,
    delay: Duration,
}

/// Sets a flag when it is dropped.
struct SetWhenDropped<'f>(&'f AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    tensors: BTreeMap<String, Tensor>,
    /// Ranks whose shards of the snapshot have come.
    arrived: usize,
    /// Connections, that of rank 0 included.
    streams: Vec<Stream>,
    first: Option<Stream>,
}

/// A tensor as little-endian bytes.
#[derive(Debug, PartialEq)]
struct Tensor {
    element_bytes: usize,
    bytes: Vec<u8>,
}

impl Trainee {
    /// A training of a run file. Ranks, threads and strategy of the validator are those of the training, unless the request
    /// says others.
    ///
    /// Errors: why they cannot be.
    pub fn new(
        (run, graph, dataset, sampling): (&Run, &Graph, &Dataset, &Sampling),
        request: &ServeRequest,
        work: &ValidatorWork,
    ) -> Result<Self, WorkError> {
        let mut run = run.clone();
        run.ranks = request.ranks.unwrap_or(work.ranks);
        run.threads = request.threads.unwrap_or(work.threads);
        let strategy = request.strategy.as_ref().unwrap_or(&work.strategy);
        run.strategy = strategy.parse::<StrategyChoice>()?;
        // Without a state, so that ranks hold parameters alone.
        run.optimizer = Optimizer::Sgd {
            momentum: 0.0,
            weight_decay: 0.0,
        };
        run.clip = None;
        run.ema = None;
        // Each crop is a sample of its own here.
        let sampling = sampling.for_validators();
        let [part, parts] = work.part;
        let count = sampling.samples(Split::Validation);
        let batches = count.div_ceil(run.batch.max(1));
        if part >= parts || parts > batches {
            return Err(WorkError::Part {
                part,
                parts,
                batches,
            });
        }
        let end = |part: usize| (part * batches / parts * run.batch).min(count);
        let first = sampling.first_sample(Split::Validation);
        let samples = first + end(part)..first + end(part + 1);
        let preprocessing = Preprocessing {
            sampling,
            preparation: work.preparation.clone(),
        };
        let graph = match &*work.class_weights {
            [] => graph.clone(),
            weights => graph.with_inverse_frequency(weights).map_err(Box::new)?,
        };
        Ok(Self {
            forward: Forward::without_weights(run, graph, dataset.clone(), preprocessing),
            prepared: OnceLock::new(),
            samples,
            ranks: work.ranks,
            state: Mutex::default(),
            done: AtomicU64::new(0),
            delay: Duration::from_secs_f64(request.delay.0.clamp(0.0, 1e6)),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves the connection of a rank to its end, which ends those of all others. Gives the number of snapshots, or why it
    /// ended before the training did.
    pub fn serve(
        &self,
        context: &Context,
        mut stream: Stream,
        rank: usize,
    ) -> Result<usize, WorkError> {
        {
            let mut state = self.state();
            state.streams.push(stream.try_clone()?);
            if rank == 0 {
                state.first = Some(stream.try_clone()?);
            }
        }
        let is_over = AtomicBool::new(false);
        let served = thread::scope(|scope| {
            scope.spawn(|| self.keep_alive(context, rank == 0, &is_over));
            // Also where the work panics.
            let _over = SetWhenDropped(&is_over);
            self.take_snapshots(context, &mut stream)
        });
        self.state().streams.iter().for_each(Stream::close);
        served
    }

    /// Shows rank 0 that this process lives, and ends all connections when it is asked to end.
    fn keep_alive(&self, context: &Context, is_first: bool, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Relaxed) {
            if context.is_cancelled() {
                self.state().streams.iter().for_each(Stream::close);
            }
            if is_first {
                let done = self.done.load(Ordering::Relaxed);
                self.report(&Report::Working { done });
            }
            thread::sleep(HEARTBEAT);
        }
    }

    /// Tells rank 0. One that is gone needs no report.
    fn report(&self, report: &Report<Evaluated>) {
        if let Some(first) = &mut self.state().first {
            let _ = send(first, report);
        }
    }

    fn take_snapshots(&self, context: &Context, stream: &mut Stream) -> Result<usize, WorkError> {
        let mut snapshots = 0;
        loop {
            let head = match receive_snapshot(stream) {
                Ok(head) => head,
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(error.into());
                }
                Err(_) => return Ok(snapshots),
            };
            for shard in &head.shards {
                let taken = self.take_shard(stream, shard);
                taken.inspect_err(|error| {
                    self.report(&Report::Failed(error.to_string()));
                })?;
                self.done.fetch_add(1, Ordering::Relaxed);
            }
            snapshots += 1;
            let tensors = {
                let mut state = self.state();
                state.arrived += 1;
                if state.arrived < self.ranks {
                    continue;
                }
                state.arrived = 0;
                std::mem::take(&mut state.tensors)
            };
            let evaluated = self.evaluate(context, &tensors);
            self.report(&match &evaluated {
                Ok(results) => Report::Done {
                    epoch: head.epoch,
                    results: results.clone(),
                },
                Err(error) => Report::Failed(partita_site::full_text(&**error)),
            });
            evaluated?;
        }
    }

    fn take_shard(&self, stream: &mut Stream, head: &ShardHead) -> Result<(), WorkError> {
        let name = &head.name;
        let parameters = &self.forward.graph.parameters;
        let known = parameters.iter().find(|one| one.name == *name);
        let is_number = matches!(head.element_bytes, 4 | 8);
        // No product wraps where the bytes are known.
        let found = known.zip(head.bytes()).filter(|(known, _)| {
            is_number && head.shape.iter().product::<usize>() == known.volume()
        });
        let (known, bytes) = found.ok_or_else(|| WorkError::Tensor(name.clone()))?;
        let elements = known.volume();
        let mut shard = vec![0; bytes];
        stream
            .read_exact(&mut shard)
            .map_err(|error| WorkError::Shard(name.clone(), error))?;
        let mut state = self.state();
        let tensor = state.tensors.entry(name.clone()).or_insert_with(|| Tensor {
            element_bytes: head.element_bytes,
            bytes: vec![0; elements * head.element_bytes],
        });
        if tensor.element_bytes != head.element_bytes {
            return Err(WorkError::Types(name.clone()));
        }
        tensor.put(head, &shard);
        Ok(())
    }

    /// Evaluates a snapshot.
    fn evaluate(
        &self,
        context: &Context,
        tensors: &BTreeMap<String, Tensor>,
    ) -> Result<Evaluated, Arc<TrainError>> {
        thread::sleep(self.delay);
        let launch = Launch::threads(context);
        let start = Instant::now();
        let prepared = self.prepared.get_or_init(|| {
            let range = self.samples.clone();
            let prepared = self.forward.prepare_samples(
                &launch,
                ProgramKind::Evaluate,
                range.collect(),
                Vec::new(),
            );
            prepared.map_err(Arc::new)
        });
        let prepared = prepared.as_ref().map_err(Clone::clone)?;
        let batches: Mutex<Vec<EvaluatedBatch>> = Mutex::default();
        let listener = Box::new(|progress: Progress| {
            if let Progress::Evaluated { batch, .. } = progress {
                self.done.fetch_add(1, Ordering::Relaxed);
                batches
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(batch);
            }
        });
        let ended = self.forward.execute_from(
            &launch,
            prepared,
            &|name, elements| match tensors.get(name) {
                Some(tensor) => Ok(tensor.part(elements)),
                None => Err(format!("the snapshot lacks `{name}`").into()),
            },
            listener,
        );
        let end = ended.map_err(Arc::new)?;
        let mut batches = batches.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let RunEnd::NotFinite { loss, .. } = end {
            batches.push(EvaluatedBatch::new(0, loss, &[], &[]));
        }
        let seconds = Seconds(start.elapsed().as_secs_f64());
        Ok(Evaluated { batches, seconds })
    }
}

impl Tensor {
    /// Copies a shard to its place, row by row.
    fn put(&mut self, head: &ShardHead, shard: &[u8]) {
        let size = self.element_bytes;
        let [n, d, h, w, c] = head.region;
        let row = (c[1] - c[0]) * size;
        let mut rest = shard;
        for n in n[0]..n[1] {
            for d in d[0]..d[1] {
                for h in h[0]..h[1] {
                    for w in w[0]..w[1] {
                        let at = [n, d, h, w, c[0]];
                        let step = |offset, dim: usize| offset * head.shape[dim] + at[dim];
                        let start = (0..5).fold(0, step) * size;
                        let (own, after) = rest.split_at(row);
                        self.bytes[start..start + row].copy_from_slice(own);
                        rest = after;
                    }
                }
            }
        }
    }

    /// A range of its elements.
    fn part(&self, elements: Range<usize>) -> Vec<f64> {
        let bytes =
            &self.bytes[elements.start * self.element_bytes..elements.end * self.element_bytes];
        if self.element_bytes == 4 {
            let words = bytes.as_chunks::<4>().0.iter();
            words
                .map(|&word| f64::from(f32::from_le_bytes(word)))
                .collect()
        } else {
            let words = bytes.as_chunks::<8>().0.iter();
            words.map(|&word| f64::from_le_bytes(word)).collect()
        }
    }
}
