//! Prof
//! Plans over small models with costs that can be reasoned about.

use partita_graph::{Graph, zoo};
use partita_lower::{LowerError, Request, SampleFormat, Strategy, lower};
use partita_oracle::{
    CollectiveCost, CostBasis, CostError, Costs, MessageCost, Mode, Prediction, predict,
};
use partita_plan::{Candidate, PlanError, PlanRequest, compute_bound, hybrids, plan};
use partita_program::{
    Algorithm, Choice, Count, Dtype, KernelShape, Menu, MenuError, Optimizer, Program, ProgramKind,
    Transform,
};
use partita_space::{Axis, Bytes, FlopsPerSecond, Rank, Seconds};
use std::cell::RefCell;
use std::time::Instant;

/// Flops and bytes at fixed rates; messages at `alpha + beta n`; reads for nothing.
struct Flat {
    rate: f64,
    alpha: f64,
    beta: f64,
}

impl Flat {
    fn line(&self, bytes: f64) -> (Seconds, Seconds) {
        (Seconds(self.alpha), Seconds(self.beta * bytes))
    }
}

impl Costs for Flat {
    fn basis(&self) -> CostBasis {
        CostBasis::Modelled
    }
    fn admit(&self, _ranks: usize) -> Result<(), CostError> {
        Ok(())
    }
    fn node(&self, rank: Rank) -> usize {
        rank / 4
    }
    fn link(&self, a: Rank, b: Rank) -> u32 {
        u32::from(a != b) + u32::from(self.node(a) != self.node(b))
    }
    fn kernel(
        &self,
        _shape: &KernelShape<'_>,
        _algorithm: &Algorithm,
        count: &Count,
    ) -> Result<Seconds, CostError> {
        let bytes = (count.read + count.written).0 as f64;
        Ok(Seconds(count.flops.0 as f64 / self.rate + bytes / 1e11))
    }
    fn message(
        &self,
        _from: Rank,
        _to: Rank,
        bytes: Bytes,
        _sharing: f64,
    ) -> Result<MessageCost, CostError> {
        let (latency, transfer) = self.line(bytes.0 as f64);
        let host = Seconds(0.0);
        Ok(MessageCost {
            latency,
            transfer,
            host,
        })
    }
    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        _sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        if members.len() < 2 {
            return Ok(CollectiveCost::default());
        }
        let (latency, transfer) = self.line(2.0 * bytes.0 as f64);
        let host = Seconds(0.0);
        Ok(CollectiveCost {
            latency,
            transfer,
            host,
        })
    }
    fn allgather(
        &self,
        _members: &[Rank],
        bytes_per_member: &[Bytes],
        _sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        let bytes: Bytes = bytes_per_member.iter().copied().sum();
        let (latency, transfer) = self.line(bytes.0 as f64);
        let host = Seconds(0.0);
        Ok(CollectiveCost {
            latency,
            transfer,
            host,
        })
    }
    fn load(&self, _rank: Rank, _bytes: Bytes, _readers: usize) -> Result<Seconds, CostError> {
        Ok(Seconds(0.0))
    }
}

const FAST_LINK: Flat = Flat {
    rate: 1e10,
    alpha: 1e-6,
    beta: 1e-11,
};

struct Open;

impl Menu for Open {
    fn choose(&self, _shape: &KernelShape<'_>) -> Result<Choice, MenuError> {
        Ok(Choice {
            algorithm: Algorithm::unpinned(),
            workspace: Bytes(0),
        })
    }
}

fn training(graph: &Graph, batch: usize) -> Request<'_> {
    Request {
        graph,
        strategy: Strategy::single(),
        batch,
        kind: ProgramKind::Train,
        dtype: Dtype::F32,
        optimizer: Optimizer::Sgd {
            momentum: 0.0,
            weight_decay: 0.0,
        },
        clip: None,
        samples: SampleFormat {
            dtype: Dtype::F32,
            transform: Transform::Identity,
        },
        menu: &Open,
    }
}

fn oracle(costs: &Flat, program: &Program) -> Result<Prediction, String> {
    predict(program, costs, Mode::Classes, 1, false).map_err(|error| error.to_string())
}

fn planned(
    graph: &Graph,
    (ranks, batch): (usize, usize),
    costs: &Flat,
    memory: Bytes,
    rate_max: Option<f64>,
) -> Result<Vec<Candidate>, PlanError> {
    plan(&PlanRequest {
        training: training(graph, batch),
        ranks,
        memory,
        rate_max: rate_max.map(FlopsPerSecond),
        cost: &|program| oracle(costs, program),
        progress: &|_, _| {},
    })
}

const PLENTY: Bytes = Bytes(1 << 50);


fn main() {
    let graph = zoo::build("cosmoflow@512").unwrap();
    let costs = Flat { rate: 8e12, alpha: 5e-6, beta: 5e-11 };
    for text in ["data=64,depth=16","data=64,depth=4,height=2,width=2","data=64,depth=4,height=4", "data=8,depth=8,height=4,width=4","depth=64,height=16","data=4,depth=16,height=16","depth=16,height=8,width=8", "data=2,depth=512"] {
        let strategy: Strategy = text.parse().unwrap();
        let request = Request { strategy, ..training(&graph, 64) };
        let t = Instant::now();
        let one = partita_lower::lower_rank(&request, strategy.ranks() - 1).unwrap();
        let t0 = t.elapsed().as_secs_f64();
        let t = Instant::now();
        let program = lower(&request).unwrap();
        let t1 = t.elapsed().as_secs_f64();
        let t = Instant::now();
        let digest = program.digest();
        let t2 = t.elapsed().as_secs_f64();
        let t = Instant::now();
        let p = oracle(&costs, &program).unwrap();
        let t3 = t.elapsed().as_secs_f64();
        println!("{text}: bodies {} tasks {} rank {t0:.3} lower {t1:.3} digest {t2:.3} predict(with digest) {t3:.3} classes {} seconds {} mem {} {}", program.bodies.len(), one.tasks.len(), p.classes, p.iteration_seconds, p.memory_bytes_max, digest.len());
    }
}
