use partita_oracle::{
    Blocks, CollectiveCost, CostBasis, CostError, Costs, KernelCost, MachineCosts, MessageCost,
};
use partita_program::{Algorithm, Count, KernelShape};
use partita_space::{Bytes, Rank, Seconds};

/// Costs of a machine whose ranks hold their samples in memory: reading takes no time.
pub struct InMemory(pub MachineCosts);

impl Costs for InMemory {
    fn basis(&self) -> CostBasis {
        self.0.basis()
    }

    fn delivers_between_kernels(&self) -> bool {
        self.0.delivers_between_kernels()
    }

    fn admit(&self, ranks: usize) -> Result<(), CostError> {
        self.0.admit(ranks)
    }

    fn node(&self, rank: Rank) -> usize {
        self.0.node(rank)
    }

    fn link(&self, a: Rank, b: Rank) -> u32 {
        self.0.link(a, b)
    }

    fn kernel(
        &self,
        shape: &KernelShape<'_>,
        algorithm: &Algorithm,
        count: &Count,
    ) -> Result<KernelCost, CostError> {
        self.0.kernel(shape, algorithm, count)
    }

    fn message(
        &self,
        from: Rank,
        to: Rank,
        bytes: Bytes,
        sharing: f64,
    ) -> Result<MessageCost, CostError> {
        self.0.message(from, to, bytes, sharing)
    }

    fn allreduce(
        &self,
        members: &[Rank],
        bytes: Bytes,
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.0.allreduce(members, bytes, sharing)
    }

    fn allgather(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.0.allgather(members, bytes_per_member, sharing)
    }

    fn reduce_scatter(
        &self,
        members: &[Rank],
        bytes_per_member: &[Bytes],
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.0.reduce_scatter(members, bytes_per_member, sharing)
    }

    fn alltoall(
        &self,
        members: &[Rank],
        blocks: Blocks,
        sharing: f64,
    ) -> Result<CollectiveCost, CostError> {
        self.0.alltoall(members, blocks, sharing)
    }

    fn load(&self, _rank: Rank, _bytes: Bytes, _readers: usize) -> Result<Seconds, CostError> {
        Ok(Seconds(0.0))
    }
}
