"""Networks in PyTorch of what `partita inspect MODEL --text` prints, and their training steps.

They are computed with PyTorch's own modules of the model's dimension, in float32, with Adam; the batch
is random and always the same. A step is: zero the gradients, forward, backward, update.
"""

import sys
import time

import torch
from model_text import parse
from torch import nn

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
CONV_TRANSPOSE = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
MAX_POOL = {2: nn.MaxPool2d, 3: nn.MaxPool3d}
AVERAGE_POOL = {2: nn.AvgPool2d, 3: nn.AvgPool3d}
ADAPTIVE_AVERAGE_POOL = {2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}
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
        case "adaptive_average_pool":
            return ADAPTIVE_AVERAGE_POOL[rank](node.numbers("output", rank))
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
    sys.exit(f"PyTorch's peer does not know the operation `{node.operation}` of `{node.name}`")


def window_of(node, rank, stride=None):
    pads = node.pairs("pad", rank, "0")
    if any(low != high for low, high in pads) or "dilation" in node.keys:
        sys.exit(f"PyTorch's peer knows only plain windows; `{node.name}` has another")
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
    """A network with its optimizer and a batch.

    `wrap` makes what is trained of the network, on whose weights the optimizer works; `seed` is that of
    the batch.
    """

    def __init__(self, model, layout, samples, seed, wrap=lambda network: network):
        torch.manual_seed(1)
        with open(model, encoding="utf-8") as file:
            nodes, extent = parse(file.read())
        network = Network(nodes, extent)
        self.parameters = sum(p.numel() for p in network.parameters())
        like = {}
        if layout == "channels_last":
            like = {"memory_format": CHANNELS_LAST[len(extent)]}
        self.network = wrap(network.to(**like).train())
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        torch.manual_seed(seed)
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
