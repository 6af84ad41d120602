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
import time

from peer import at_least, serve

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit("peer_ddp.py needs PyTorch, which this Python lacks: pip install torch")
import torch.distributed as dist
import torch.multiprocessing as processes
from model_text import parse

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
CONV_TRANSPOSE = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
MAX_POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE_POOL = {2: nn.AvgPool2d, 3: nn.AvgPool3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def module(node, rank, x):
    """The module of a node with one input, of which x is an example; None for a node with more."""
    keys, bias = node.keys, node.has("bias")
    match node.operation:
        case "conv":
            window = window_of(node, rank, stride="1")
            groups = int(keys.get("groups", 1))
            return CONV[rank](
                x.shape[1], int(keys["filters"]), **window, groups=groups, bias=bias
            )
        case "conv_transpose":
            window = window_of(node, rank, stride="1")
            return CONV_TRANSPOSE[rank](x.shape[1], int(keys["filters"]), **window, bias=bias)
        case "max_pool":
            return MAX_POOL[rank](**window_of(node, rank))
        case "average_pool":
            return AVERAGE_POOL[rank](
                **window_of(node, rank), count_include_pad=node.has("count_padding")
            )
        case "batch_norm":
            epsilon, momentum = float(keys["epsilon"]), float(keys["momentum"])
            return BATCH_NORM[x.ndim - 2](x.shape[1], epsilon, momentum)
        case "relu":
            return nn.ReLU(inplace=True)
        case "leaky_relu":
            return nn.LeakyReLU(float(keys["slope"]))
        case "linear":
            return nn.Linear(x.shape[1], int(keys["features"]), bias=bias)
        case "dropout":
            return nn.Dropout(float(keys["rate"]))
        case "flatten":
            return nn.Flatten()
        case "add" | "concat":
            return None
    sys.exit(f"peer_ddp.py does not know the operation `{node.operation}` of `{node.name}`")


def window_of(node, rank, stride=None):
    pads = node.pairs("pad", rank, "0")
    if any(low != high for low, high in pads) or "dilation" in node.keys:
        sys.exit(f"peer_ddp.py knows only plain windows; `{node.name}` has another")
    return {
        "kernel_size": node.numbers("kernel", rank),
        "stride": node.numbers("stride", rank, stride),
        "padding": [low for low, _ in pads],
    }


class Network(nn.Module):
    """The graph of a text but for its loss."""

    def __init__(self, nodes, extent):
        super().__init__()
        self.nodes = nodes
        self.operations = nn.ModuleDict()
        tensors = {nodes[0].name: torch.zeros(2, int(nodes[0].keys["channels"]), *extent)}
        with torch.no_grad():
            for node in nodes[1:-1]:
                operation = module(node, len(extent), tensors[node.inputs[0]])
                if operation is not None:
                    self.operations[node.name.replace(".", "/")] = operation
                tensors[node.name] = self.compute(node, tensors)
        self.output = tensors[nodes[-1].inputs[0]].shape[1:]

    def compute(self, node, tensors):
        inputs = [tensors[name] for name in node.inputs]
        if node.operation == "add":
            return inputs[0] + inputs[1]
        if node.operation == "concat":
            return torch.cat(inputs, dim=1)
        return self.operations[node.name.replace(".", "/")](inputs[0])

    def forward(self, x):
        tensors = {self.nodes[0].name: x}
        for node in self.nodes[1:-1]:
            tensors[node.name] = self.compute(node, tensors)
        return tensors[self.nodes[-1].inputs[0]]


class Trainer:
    """A rank with its copy of the network and its share of the batch."""

    def __init__(self, options, rank):
        torch.manual_seed(1)
        with open(options.model, encoding="utf-8") as file:
            nodes, extent = parse(file.read())
        network = Network(nodes, extent)
        self.parameters = sum(p.numel() for p in network.parameters())
        like = {}
        if options.layout == "channels_last":
            like = {"memory_format": CHANNELS_LAST[len(extent)]}
        self.network = nn.parallel.DistributedDataParallel(network.to(**like).train())
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        torch.manual_seed(2 + rank)
        samples = options.batch // options.ranks
        self.x = torch.randn(samples, int(nodes[0].keys["channels"]), *extent).to(**like)
        if nodes[-1].operation == "mse":
            self.loss, self.target = nn.MSELoss(), torch.rand(samples, *network.output)
        else:
            classes, *places = network.output
            self.loss = nn.CrossEntropyLoss()
            self.target = torch.randint(classes, (samples, *places))

    def step(self):
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.network(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - start, loss.item()

    def steps(self, count):
        done = [self.step() for _ in range(count)]
        return [seconds for seconds, _ in done], done[-1][1]


def take_part(rank, options, cores, port):
    """The life of a rank; the first is driven, and tells the others how many steps are next."""
    os.sched_setaffinity(0, [cores[rank]])
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.ranks)
    trainer = Trainer(options, rank)

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
