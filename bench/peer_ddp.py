"""Times data-parallel training steps of a model in PyTorch: DistributedDataParallel over gloo.

    peer_ddp.py MODEL.txt --ranks 2 --batch 2 --layout channels_last

MODEL.txt is what `partita inspect MODEL --text` prints, computed with PyTorch's own modules of the
model's dimension. Each rank is a process with one thread on a core of its own and its share of the
batch; batch norm takes the statistics of that share, as is usual and cheaper than to synchronize.
Adam, float32; the batch is random and always the same. A step is: zero the gradients, forward,
backward with its allreduces, update. Driven as peer.py says; the seconds are those of rank 0.
"""

import argparse
import os
import socket
import sys

from peer import at_least, serve

try:
    import torch
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    sys.exit("peer_ddp.py needs PyTorch, which this Python lacks: pip install torch")
import torch.distributed as dist
import torch.multiprocessing as processes
from peer_network import Trainer


def take_part(rank, options, cores, port):
    """The life of a rank; the first is driven, and tells the others how many steps are next."""
    os.sched_setaffinity(0, [cores[rank]])
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.ranks)
    samples = options.batch // options.ranks
    trainer = Trainer(
        options.model, options.layout, samples, seed=2 + rank, wrap=DistributedDataParallel
    )

    def run(count):
        dist.broadcast(torch.tensor([count]), 0)
        return trainer.steps(count) if count > 0 else None

    if rank == 0:
        # So that the others begin by waiting, wherever they come from.
        sys.stdin = os.fdopen(options.input)
        serve(describe(options, trainer), run)
        run(0)
    else:
        count = torch.tensor([1])
        while count.item() > 0:
            dist.broadcast(count, 0)
            if count.item() > 0:
                trainer.steps(count.item())
    dist.destroy_process_group()


def describe(options, trainer):
    return {
        "peer": "pytorch",
        "version": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "parameters": trainer.parameters,
        "batch": options.batch,
        "ranks": options.ranks,
        "layout": options.layout,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model's text")
    parser.add_argument("--ranks", type=at_least(1), default=2)
    parser.add_argument("--batch", type=at_least(1), default=2, help="samples a step of all ranks")
    parser.add_argument("--layout", choices=("default", "channels_last"), default="default")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if options.batch % options.ranks or options.ranks > len(cores):
        sys.exit(f"{options.ranks} ranks want as many cores, and a batch that they divide")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options.input = os.dup(0)
    os.set_inheritable(options.input, True)
    processes.start_processes(
        take_part, (options, cores, port), nprocs=options.ranks, start_method="fork"
    )


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
