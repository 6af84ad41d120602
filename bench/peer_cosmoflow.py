"""Times training steps of CosmoFlow in PyTorch on this CPU, the peer of `partita train`.

The layers are those of the zoo's `cosmoflow@64`, `cosmoflow@128` and so on: seven 3x3x3 convolutions
without bias, the fourth of stride 2, each followed by a leaky ReLU (0.01) and, while the extent is
above 2, by an average pooling 3/2/1 that counts padding; then a dropout (0.2) before each of three
linear layers 2048, 256, 4 without bias. Mean squared error, Adam, float32. A step is: zero the
gradients, forward, backward, update; data is the same random batch all the time.

Plain: `python3 peer_cosmoflow.py --batch 1 --size 64 --threads 2 --layout channels_last` warms up,
times `--steps` steps and prints their median.

Driven: with `--serve` the program writes a line {"ready": ...} and then reads lines from standard
input: `step K` runs K steps and answers one line {"seconds": [K step times], "loss": last loss};
`quit` or the end of input ends it. So a driver can take turns with another program; between lines
the program waits without using the processor. A line that is not understood is answered by
{"error": ...}.
"""

import argparse
import statistics
import sys
import time

from peer import at_least, say, serve

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit("peer_cosmoflow.py needs PyTorch, which this Python lacks: pip install torch")

FILTERS = (16, 32, 64, 128, 256, 256, 256)
FEATURES = (2048, 256, 4)
STRIDED = 4
SLOPE = 0.01
DROPOUT = 0.2
MEMORY_FORMATS = {"default": torch.contiguous_format, "channels_last": torch.channels_last_3d}


def cosmoflow(size):
    """The network for (N, 4, size, size, size)."""
    layers, channels, extent = [], 4, size
    for i, filters in enumerate(FILTERS, 1):
        stride = 2 if i == STRIDED else 1
        layers += [nn.Conv3d(channels, filters, 3, stride, 1, bias=False), nn.LeakyReLU(SLOPE)]
        channels, extent = filters, extent // stride
        if extent > 2:
            layers.append(nn.AvgPool3d(3, 2, 1, count_include_pad=True))
            extent //= 2
    layers.append(nn.Flatten())
    inputs = channels * extent**3
    for i, features in enumerate(FEATURES):
        layers += [nn.Dropout(DROPOUT), nn.Linear(inputs, features, bias=False)]
        if i + 1 < len(FEATURES):
            layers.append(nn.LeakyReLU(SLOPE))
        inputs = features
    return nn.Sequential(*layers)


class Trainer:
    """A network with its optimizer and one batch."""

    def __init__(self, options):
        torch.manual_seed(options.seed)
        memory_format = MEMORY_FORMATS[options.layout]
        self.network = cosmoflow(options.size).to(memory_format=memory_format).train()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=1e-4)
        x = torch.randn(options.batch, 4, options.size, options.size, options.size)
        self.x = x.to(memory_format=memory_format)
        self.target = torch.rand(options.batch, FEATURES[-1]) * 2 - 1
        self.last_loss = None

    def step(self):
        """One training step; its seconds."""
        start = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.network(self.x), self.target)
        loss.backward()
        self.optimizer.step()
        seconds = time.perf_counter() - start
        self.last_loss = loss.item()
        return seconds

    def steps(self, count):
        return [self.step() for _ in range(count)]


def convolution_backends(trainer):
    """What PyTorch chooses for each convolution at these shapes; None if this version does not tell."""
    select = getattr(torch._C, "_select_conv_backend", None)
    if select is None:
        return None
    chosen, x = [], trainer.x
    with torch.no_grad():
        for layer in trainer.network:
            if isinstance(layer, nn.Flatten):
                break
            if isinstance(layer, nn.Conv3d):
                window = (layer.stride, layer.padding, layer.dilation)
                chosen.append(select(x, layer.weight, None, *window, False, (0, 0, 0), 1).name)
            x = layer(x)
    return chosen


def describe(options, trainer):
    return {
        "peer": "pytorch",
        "version": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "model": f"cosmoflow@{options.size}",
        "parameters": sum(p.numel() for p in trainer.network.parameters()),
        "batch": options.batch,
        "threads": torch.get_num_threads(),
        "layout": options.layout,
        "warmup": options.warmup,
        "convolution_backends": convolution_backends(trainer),
    }


def report(options, trainer):
    seconds = trainer.steps(options.steps)
    record = describe(options, trainer)
    record |= {
        "median_seconds": statistics.median(seconds),
        "seconds": seconds,
        "samples_per_second": options.batch / statistics.median(seconds),
        "loss": trainer.last_loss,
    }
    if options.json:
        say(record)
        return
    print(
        f"{record['model']} batch {options.batch}, {record['threads']} threads, {options.layout}:"
        f" median {record['median_seconds']:.4f} s a step (least {min(seconds):.4f}, most"
        f" {max(seconds):.4f}, {len(seconds)} steps), PyTorch {record['version']}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=at_least(1), default=1, help="samples a step")
    parser.add_argument("--size", type=int, choices=(32, 64, 128, 256, 512), default=64)
    parser.add_argument("--threads", type=at_least(1), default=2)
    parser.add_argument("--layout", choices=tuple(MEMORY_FORMATS), default="default")
    parser.add_argument("--steps", type=at_least(1), default=10, help="timed steps of the plain mode")
    parser.add_argument("--warmup", type=at_least(0), default=3, help="steps before")
    parser.add_argument("--seed", type=at_least(0), default=1)
    parser.add_argument("--serve", action="store_true", help="read `step K` from standard input")
    parser.add_argument("--json", action="store_true", help="plain mode: a JSON line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    trainer = Trainer(options)
    trainer.steps(options.warmup)
    if options.serve:
        serve(describe(options, trainer), lambda count: (trainer.steps(count), trainer.last_loss))
    else:
        report(options, trainer)


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
