use partita_oracle::Costs;
use partita_program::{Body, Count, KernelShape, Work};
use partita_space::Seconds;

/// Seconds of all kernels of a rank, one after the other: no step in which it takes part is shorter,
/// since a rank runs one kernel at a time. A kernel whose cost is not known counts for nothing, which
/// leaves the sum a lower bound.
pub fn kernel_seconds(body: &Body, costs: &dyn Costs) -> Seconds {
    let seconds = body.tasks.iter().map(|task| match &task.work {
        Work::Compute {
            kernel, algorithm, ..
        } => {
            let shape = KernelShape {
                kernel,
                buffers: &body.buffers,
            };
            let count = Count::of(task, &body.buffers);
            costs
                .kernel(&shape, algorithm, &count)
                .map_or(0.0, |seconds| seconds.0)
        }
        Work::Exchange(_) | Work::Collective(_) | Work::Load(_) => 0.0,
    });
    Seconds(seconds.sum())
}
