"""Times training steps of a model in PyTorch in one process on this CPU, a peer of `partita train`.

    peer_steps.py MODEL.txt --batch 4 --threads 2 --layout channels_last --compile

MODEL.txt is what `partita inspect MODEL --text` prints; peer_network.py says what a step is. With
`--compile` the network goes through torch.compile, whose vectors are no wider than those of PyTorch's
own kernels (ATEN_CPU_CAPABILITY). One step is done before the first line. Driven as peer.py says.
"""

import argparse
import sys

from peer import at_least, serve

try:
    import torch
except ImportError:
    sys.exit("peer_steps.py needs PyTorch, which this Python lacks: pip install torch")
from peer_network import Trainer


def compiled(network):
    """The network under torch.compile; fails at its first step where that does not work here."""
    import torch._inductor.config as inductor

    if torch.backends.cpu.get_cpu_capability() == "AVX2":
        inductor.cpp.simdlen = 256
    return torch.compile(network)


def describe(options, trainer):
    return {
        "peer": "pytorch",
        "version": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "parameters": trainer.parameters,
        "batch": options.batch,
        "threads": torch.get_num_threads(),
        "layout": options.layout,
        "compiled": options.compile,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a model's text")
    parser.add_argument("--batch", type=at_least(1), default=1, help="samples a step")
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--layout", choices=("default", "channels_last"), default="default")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    wrap = {"wrap": compiled} if options.compile else {}
    trainer = Trainer(options.model, options.layout, options.batch, seed=2, **wrap)
    trainer.steps(1)
    serve(describe(options, trainer), trainer.steps)


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
