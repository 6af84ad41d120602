"""Times single convolutions in PyTorch on this CPU, a peer of Partita's kernels.

`python3 peer_convolution.py --threads 1 --layout channels_last` reads lines from standard input, as
crates/cpu/examples/convolution.rs does: "n c f d h w kd kh kw sd sh sw pd ph pw dilation groups direction repeats" is
answered by {"seconds": [...], "backend": what PyTorch chose}, after one run that does not count. Tensors are made in
the layout that was asked for; a call is an operator with a new result, as in training. Two-dimensional convolutions
are computed as such.
"""

import argparse
import sys
import time
from collections.abc import Callable

from peer import guarded, serve

try:
    import torch
except ImportError:
    sys.exit("peer_convolution.py needs PyTorch, which this Python lacks: pip install torch")

DIRECTIONS = {"backward_data": [True, False, False], "backward_weight": [False, True, False]}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def call_of(words: list[str], layout: str) -> tuple[Callable, str | None]:
    """The call that a line asks for, and PyTorch's name of what computes it."""
    if len(words) != 19:
        raise ValueError(f"{len(words)} words, 19 are needed")
    *numbers, direction, _ = words
    n, c, f, *rest, dilation, groups = map(int, numbers)
    extent, kernel, stride, padding = (rest[i : i + 3] for i in range(0, 12, 3))
    if extent[0] == kernel[0] == 1:
        extent, kernel, stride, padding = extent[1:], kernel[1:], stride[1:], padding[1:]
    dims = len(extent)
    memory_format = torch.contiguous_format if layout == "default" else CHANNELS_LAST[dims]
    x = (torch.rand(n, c, *extent) - 0.5).to(memory_format=memory_format)
    w = (torch.rand(f, c // groups, *kernel) - 0.5).to(memory_format=memory_format)
    window = (stride, padding, [dilation] * dims, False, [0] * dims, groups)
    backend = getattr(torch._C, "_select_conv_backend", lambda *_: None)(x, w, None, *window)
    name = getattr(backend, "name", None)
    if direction == "forward":
        return lambda: torch.ops.aten.convolution(x, w, None, *window), name
    if direction not in DIRECTIONS:
        raise ValueError(f"no direction {direction}")
    mask = DIRECTIONS[direction]
    dy = torch.ops.aten.convolution(x, w, None, *window).uniform_(-0.5, 0.5)
    return lambda: torch.ops.aten.convolution_backward(dy, x, w, None, *window, mask), name


def answer(words: list[str], layout: str) -> dict:
    call, backend = call_of(words, layout)
    call()
    seconds = []
    for _ in range(int(words[-1])):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
        del result
    return {"seconds": seconds, "backend": backend}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layout", choices=("default", "channels_last"), default="default")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    facts = {"version": torch.__version__, "threads": options.threads, "layout": options.layout}
    with torch.no_grad():
        serve(facts, lambda words: answer(words, options.layout))


if __name__ == "__main__":
    guarded(main)
