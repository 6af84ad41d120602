"""Times training steps of a model in PyTorch on this CPU, a peer of `partita train`.

    peer_torch.py MODEL.txt --batch 4 --threads 2 --layout channels_last --compile
    peer_torch.py MODEL.txt --batch 4 --ranks 2
    peer_torch.py MODEL.txt --batch 1 --memory

The model is computed with PyTorch's own modules of its dimension, in float32, with Adam; the batch is random and
always the same. A step is: zero the gradients, forward, backward, update. With `--compile` the network goes through
torch.compile, whose vectors are no wider than those of PyTorch's own kernels (ATEN_CPU_CAPABILITY). With `--ranks` it
is trained by DistributedDataParallel over gloo: each rank is a process with one thread on a core of its own and its
share of the batch, whose statistics batch norm takes; the seconds are those of rank 0. One step is done before the
first line. With `--memory` nothing is computed: PyTorch's own tracker follows a step of fake tensors, and the answer is
the largest sum of bytes of its tensors. Workspaces of libraries and what an allocator rounds up come on top.
"""

import os
import socket
import sys
import time
from argparse import Namespace
from collections.abc import Callable

from peer import at_least_one, guarded, parser, say, serve, steps
from model_text import Node, parse

try:
    import torch
except ImportError:
    sys.exit("peer_torch.py needs PyTorch, which this Python lacks: pip install torch")
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn

# Modules by operation, then by the number of spatial dims.
WINDOWED = {
    "max_pool": {2: nn.MaxPool2d, 3: nn.MaxPool3d},
    "average_pool": {2: nn.AvgPool2d, 3: nn.AvgPool3d},
    "conv": {2: nn.Conv2d, 3: nn.Conv3d},
    "conv_transpose": {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d},
}
ADAPTIVE_AVERAGE_POOL = {2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
BATCH_NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def module(node: Node, rank: int, x: torch.Tensor) -> nn.Module | None:
    """The module of a node with one input, of which x is an example; None for a node with more."""
    keys, bias = node.keys, node.has("bias")
    match node.operation:
        case "conv" | "conv_transpose":
            more = window_of(node, rank, "1") | {"groups": int(keys.get("groups", 1)), "bias": bias}
            return WINDOWED[node.operation][rank](x.shape[1], int(keys["filters"]), **more)
        case "max_pool":
            return WINDOWED[node.operation][rank](**window_of(node, rank))
        case "average_pool":
            padding = {"count_include_pad": node.has("count_padding")}
            return WINDOWED[node.operation][rank](**window_of(node, rank), **padding)
        case "adaptive_average_pool":
            return ADAPTIVE_AVERAGE_POOL[rank](node.numbers("output", rank))
        case "batch_norm":
            return BATCH_NORM[x.ndim - 2](x.shape[1], float(keys["epsilon"]), float(keys["momentum"]))
        case "group_norm":
            return nn.GroupNorm(int(keys["groups"]), x.shape[1], float(keys["epsilon"]))
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
    sys.exit(f"PyTorch's peer does not know the operation `{node.operation}` of `{node.name}`")


def window_of(node: Node, rank: int, stride: str | None = None) -> dict:
    pads = node.pairs("pad", rank, "0")
    if any(low != high for low, high in pads) or "dilation" in node.keys:
        sys.exit(f"PyTorch's peer knows only plain windows; `{node.name}` has another")
    sizes = {"kernel_size": node.numbers("kernel", rank), "stride": node.numbers("stride", rank, stride)}
    return sizes | {"padding": [low for low, _ in pads]}


class Network(nn.Module):
    """The graph of a text but for its loss."""

    def __init__(self, nodes: list[Node], extent: list[int]) -> None:
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

    def compute(self, node: Node, tensors: dict) -> torch.Tensor:
        inputs = [tensors[name] for name in node.inputs]
        if node.operation == "add":
            return inputs[0] + inputs[1]
        if node.operation == "concat":
            return torch.cat(inputs, dim=1)
        return self.operations[node.name.replace(".", "/")](inputs[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tensors = {self.nodes[0].name: x}
        for node in self.nodes[1:-1]:
            tensors[node.name] = self.compute(node, tensors)
        return tensors[self.nodes[-1].inputs[0]]


class Trainer:
    """A network with its optimizer and the batch of a rank; `wrap` makes what is trained of the network."""

    def __init__(self, options: Namespace, rank: int, wrap: Callable[[nn.Module], nn.Module]) -> None:
        torch.manual_seed(1)
        with open(options.model, encoding="utf-8") as file:
            nodes, extent = parse(file.read())
        network = Network(nodes, extent)
        like = {"memory_format": CHANNELS_LAST[len(extent)]} if options.layout == "channels_last" else {}
        self.plain = (network.to(**like) if like else network).train()
        self.network = wrap(self.plain)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        torch.manual_seed(2 + rank)
        samples = options.batch // options.ranks
        self.x = torch.randn(samples, int(nodes[0].keys["channels"]), *extent).to(**like)
        if nodes[-1].operation == "mse":
            self.loss, self.target = nn.MSELoss(), torch.rand(samples, *network.output)
        else:
            classes, *places = network.output
            self.loss, self.target = nn.CrossEntropyLoss(), torch.randint(classes, (samples, *places))

    def update(self) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.network(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self) -> tuple[float, float]:
        start = time.perf_counter()
        loss = self.update()
        return time.perf_counter() - start, loss.item()

    def steps(self, count: int) -> tuple[list[float], float]:
        done = [self.step() for _ in range(count)]
        return [seconds for seconds, _ in done], done[-1][1]

    def convolution_backends(self) -> list[str] | None:
        """What PyTorch chooses for each convolution at these shapes; None if this version does not tell."""
        select, chosen = getattr(torch._C, "_select_conv_backend", None), []
        if select is None:
            return None

        def note(one: nn.Module, inputs: tuple) -> None:
            window = (one.stride, one.padding, one.dilation, False, [0] * len(one.stride), one.groups)
            chosen.append(select(inputs[0], one.weight, one.bias, *window).name)

        convolutions = [one for one in self.plain.modules() if isinstance(one, (nn.Conv2d, nn.Conv3d))]
        hooks = [one.register_forward_pre_hook(note) for one in convolutions]
        with torch.no_grad():
            self.plain(self.x)
        for hook in hooks:
            hook.remove()
        return chosen


def compiled(network: nn.Module) -> nn.Module:
    """The network under torch.compile; fails at its first step where that does not work here."""
    import torch._inductor.config as inductor

    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        inductor.cpp.simdlen = 256
    return torch.compile(network)


def describe(options: Namespace, trainer: Trainer) -> dict:
    return {
        "peer": "pytorch",
        "version": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "parameters": sum(p.numel() for p in trainer.plain.parameters()),
        "threads": torch.get_num_threads(),
        "compiled": options.compile,
    } | {key: getattr(options, key) for key in ("batch", "ranks", "layout")}


def alone(options: Namespace) -> None:
    torch.set_num_threads(options.threads)
    trainer = Trainer(options, 0, compiled if options.compile else lambda network: network)
    backends = None if options.compile else trainer.convolution_backends()
    trainer.steps(1)
    serve(describe(options, trainer) | {"convolution_backends": backends}, steps(trainer.steps))


def peak_of_tensors(options: Namespace) -> int:
    """Bytes of all tensors at the peak of a step after the first, which has made the state of the optimizer."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        trainer = Trainer(options, 0, lambda network: network)
        trainer.update()
        trainer.optimizer.zero_grad(set_to_none=True)
        tracker = MemTracker()
        tracker.track_external(trainer.plain, trainer.optimizer, trainer.x, trainer.target)
        with tracker:
            trainer.update()
        (device,) = tracker.get_tracker_snapshot("peak").values()
        return device["Total"]


def take_part(rank: int, options: Namespace, cores: list[int], port: int) -> None:
    """The life of a rank; the first is driven, and tells the others how many steps are next."""
    os.sched_setaffinity(0, [cores[rank]])
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=options.ranks)
    trainer = Trainer(options, rank, nn.parallel.DistributedDataParallel)
    trainer.steps(1)

    def run(count: int) -> tuple[list[float], float]:
        dist.broadcast(torch.tensor([count]), 0)
        return trainer.steps(count) if count > 0 else ([], 0.0)

    if rank == 0:
        # So that the others begin by waiting, wherever they come from.
        sys.stdin = os.fdopen(options.input)
        serve(describe(options, trainer), steps(run))
        run(0)
    else:
        count = torch.tensor([1])
        while count.item() > 0:
            dist.broadcast(count, 0)
            if count.item() > 0:
                trainer.steps(int(count.item()))
    dist.destroy_process_group()


def together(options: Namespace) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if options.batch % options.ranks or options.ranks > len(cores):
        sys.exit(f"{options.ranks} ranks want as many cores, and a batch that they divide")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options.input = os.dup(0)
    os.set_inheritable(options.input, True)
    processes.start_processes(take_part, (options, cores, port), nprocs=options.ranks, start_method="fork")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--threads", type=at_least_one, default=1, help="of one process")
    options.add_argument("--ranks", type=at_least_one, default=1)
    options.add_argument("--layout", choices=("default", "channels_last"), default="default")
    options.add_argument("--compile", action="store_true", help="by torch.compile")
    options.add_argument("--memory", action="store_true", help="bytes of the tensors of a step, and no step")
    asked = options.parse_args()
    if asked.memory:
        return say({"bytes": peak_of_tensors(asked)})
    together(asked) if asked.ranks > 1 else alone(asked)


if __name__ == "__main__":
    guarded(main)
