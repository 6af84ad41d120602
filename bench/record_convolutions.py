"""Records every convolution of five networks, Partita beside oneDNN and PyTorch, in turns.

The layers are those of bench/convolutions.json, in three directions, on one core and on two, at the highest
instruction level of the processor and at AVX2. All contenders run once a round, one after the other, each one run that
does not count and then as many that do as fit in `--budget` at 50 GFLOP/s a core (25 at AVX2). The machine's triad is
measured in the same run, before each network of each round, and its peak before each layer, because the clock changes.

Partita computes from plain weights, whose transform is timed. oneDNN is driven by bench/peer_onednn.cpp, which is
compiled here against the PyPI packages onednn-cpu-gomp and onednn-devel-cpu-gomp: once with layouts of its own choice,
once with activations channels-last as Partita has them. PyTorch's calls are single operators, in both of its layouts.
At AVX2, variables keep the peers to that level, and what oneDNN names as its implementation is looked at.
"""

import contextlib
import importlib.metadata
import json
import math
import subprocess
from functools import partial
from pathlib import Path
from statistics import median
from typing import Iterator

from page import disturbance, head, table
from runner import ROOT, Bench, Failure, Record, numbers, say, some, started, watched, whole
from trainings import LAYOUTS, Served, has, peer

LAYERS = ROOT / "bench" / "convolutions.json"
PEER_ONEDNN = ROOT / "bench" / "peer_onednn.cpp"
ONEDNN_PACKAGES = ("onednn-cpu-gomp", "onednn-devel-cpu-gomp")
DIRECTIONS = {"forward": "forward", "backward_data": "data", "backward_weight": "weight"}
# Partita's, as crates/cpu/examples/convolution.rs names them; the first has a kernel of everything.
ALGORITHMS = ("direct", "two", "four", "two-four", "fourier")
# What a core is taken to do at a level when repeats are counted.
GUESS_FLOPS = {"avx512": 50e9, "avx2": 25e9, "portable": 10e9}
REPEATS_MAX = 20


def build_onednn(folder: Path) -> Path | None:
    """The driver of oneDNN; None, with the reason said, where it cannot be built."""
    try:
        files = [file for name in ONEDNN_PACKAGES for file in importlib.metadata.files(name) or ()]
        header = next(file for file in files if str(file).endswith("include/oneapi/dnnl/dnnl.hpp"))
        library = next(file for file in files if file.name == "libdnnl.so").locate().resolve().parent
        driver = folder / "peer_onednn"
        command = ["g++", "-O2", "-std=c++17", f"-I{header.locate().resolve().parents[2]}", str(PEER_ONEDNN)]
        command += ["-o", str(driver), f"-L{library}", f"-Wl,-rpath,{library}", "-ldnnl"]
        subprocess.run(command, capture_output=True, text=True, check=True)
        return driver
    except (importlib.metadata.PackageNotFoundError, StopIteration) as missing:
        say(f"oneDNN is left out: pip install {' '.join(ONEDNN_PACKAGES)} ({missing!r})")
    except OSError as error:
        say(f"oneDNN is left out: g++ cannot be run ({error})")
    except subprocess.CalledProcessError as error:
        say(f"oneDNN is left out: its driver does not compile: {error.stderr}")
    return None


class Racer(Served):
    """What takes a turn: a process with an algorithm or a layout, at an instruction level on some cores."""

    def __init__(self, program: str, way: str, level: str, threads: int, command: list, variables: dict) -> None:
        super().__init__(f"{program}, {way}", command, threads, variables, program)
        self.way, self.level = way, level

    def kept(self) -> dict:
        return {key: getattr(self, key) for key in ("program", "way", "level", "cores", "facts")}

    def answer(self, line: str) -> dict:
        answer = self.demand(line) if self.program == "Partita" else self.ask(line)
        if self.level == "avx2" and "avx512" in str(answer.get("implementation")):
            raise Failure(f"{self.name}: {answer['implementation']} is no AVX2")
        if "seconds" in answer:
            answer["seconds"] = [float(f"{seconds:.6g}") for seconds in answer["seconds"]]
        return answer


def contenders(bench: Bench, onednn: Path | None, with_torch: bool) -> Iterator[Racer]:
    """All that take turns, by level and number of cores."""
    for level, threads in ((level, threads) for level in bench.levels for threads in bench.options.threads):
        limits = bench.limits(level)
        for way in ALGORITHMS:
            yield Racer("Partita", way, level, threads, [bench.options.kernels, threads, way, level], {})
        for way in ("blocked", "channels_last") if onednn else ():
            yield Racer("oneDNN", way, level, threads, [onednn, way, threads], limits)
        for way in LAYOUTS if with_torch else ():
            command = peer("peer_convolution.py", "--threads", threads, "--layout", way)
            yield Racer("PyTorch", way, level, threads, command, limits)


def flops_of(batch: int, layer: dict) -> int:
    """Of any direction: 2 for each tap, pair of channels and output; padding included."""
    reach = [(k - 1) * layer["dilation"] + 1 for k in layer["kernel"]]
    sizes = zip(layer["input"], layer["padding"], reach, layer["stride"])
    outputs = math.prod((extent + 2 * p - r) // s + 1 for extent, p, r, s in sizes)
    return 2 * batch * outputs * math.prod(layer["kernel"]) * layer["c"] // layer["groups"] * layer["f"]


def line_of(batch: int, layer: dict, direction: str, repeats: int) -> str:
    lists = [number for key in ("input", "kernel", "stride", "padding") for number in layer[key]]
    words = [batch, layer["c"], layer["f"], *lists, layer["dilation"], layer["groups"], direction, repeats]
    return " ".join(map(str, words))


def networks_of(bench: Bench) -> list[dict]:
    """The networks that were asked for, the layers counted, and no turns taken yet."""
    wanted = bench.options.networks
    chosen = [one for one in json.loads(LAYERS.read_text())["networks"] if not wanted or one["name"] in wanted]
    if not chosen:
        raise Failure(f"no network in {LAYERS.name} has one of these names: {wanted}")
    for network in chosen:
        network["layers"] = network["layers"][: bench.options.layers]
        for layer in network["layers"]:
            layer["flops"] = flops_of(network["batch"], layer)
            layer["turns"] = {direction: {} for direction in DIRECTIONS}
    return chosen


def measure_network(bench: Bench, network: dict, racers: list[Racer], rates: dict) -> dict:
    """One round: adds to the turns of each layer what each contender answered."""
    gauge(racers, rates, "machine")
    for layer in network["layers"]:
        gauge(racers, rates, "peak")
        for direction, turns in layer["turns"].items():
            for index, racer in enumerate(racers):
                guess = layer["flops"] / (GUESS_FLOPS[racer.level] * racer.cores)
                repeats = min(REPEATS_MAX, max(1, int(bench.options.budget / guess)))
                answer = racer.answer(line_of(network["batch"], layer, direction, repeats))
                turns.setdefault(str(index), []).append(answer)
    return {"network": network["name"]}


def gauge(racers: list[Racer], rates: dict, what: str) -> None:
    """Adds the rates of the machine, which the first process of Partita of each setting measures."""
    for racer in racers:
        if racer.way == ALGORITHMS[0]:
            rates.setdefault(f"{racer.level} {racer.cores}", []).append(racer.demand(what))


def measure(bench: Bench) -> dict:
    options = bench.options
    onednn, with_torch, networks = build_onednn(bench.folder), has("torch"), networks_of(bench)
    slices: list[dict] = []
    rates: dict[str, list[dict]] = {}
    with contextlib.ExitStack() as stack:
        racers = started(stack, contenders(bench, onednn, with_torch))
        for round_number in range(1, options.rounds + 1):
            for network in networks:
                slices.append(watched(racers, partial(measure_network, bench, network, racers, rates)))
                say(f"round {round_number}: {network['name']} in {slices[-1]['turn_seconds']:.0f} s")
    facts = {"budget_seconds": options.budget, "layers_are_all": options.layers is None}
    return facts | {
        "contenders": [racer.kept() for racer in racers],
        "rates": rates,
        "slices": slices,
        "networks": networks,
    }


class Setting:
    """What ran at an instruction level on some cores; contenders are numbers."""

    def __init__(self, record: dict, name: str) -> None:
        level, cores = name.split()
        self.title = f"{level}, {cores} core(s)"
        self.rates, self.contenders = record["rates"][name], record["contenders"]
        entries = enumerate(self.contenders)
        self.all = [str(i) for i, one in entries if (one["level"], one["cores"]) == (level, int(cores))]
        self.ours, self.onednn, torch = (self.by(program) for program in ("Partita", "oneDNN", "PyTorch"))
        self.direct, self.peers = self.ours[:1], self.onednn + torch
        self.peak = f"{max(rate['peak_gflops'] for rate in self.rates):.1f}"

    def by(self, program: str) -> list[str]:
        return [one for one in self.all if self.contenders[int(one)]["program"] == program]

    def columns(self, first: str, racers: list[str], last: str) -> str:
        found = (self.contenders[int(one)] for one in racers)
        names = (one["way"] if one["program"] == "Partita" else f"{one['program']}, {one['way']}" for one in found)
        return " | ".join([first, *(f"{name}>" for name in names), last])

    def rates_line(self) -> str:
        peak, triad = ([rate[key] for rate in self.rates if key in rate] for key in ("peak_gflops", "triad_gbytes"))
        return (
            f"Measured rates of {self.title}: peak {max(peak):.1f} GFLOP/s (median {median(peak):.1f}),"
            f" triad {max(triad):.1f} GB/s (median {median(triad):.1f}), its writes once"
        )


def page(record: dict, raw: str):
    settings = [Setting(record, name) for name in record["rates"]]
    versions = {one["program"]: one["facts"]["version"] for one in record["contenders"]}
    present = [f"{name} {versions[name]}" for name in ("oneDNN", "PyTorch") if name in versions]
    absent = [f"**without {name}**" for name in ("oneDNN", "PyTorch") if name not in versions]
    lines = [setting.rates_line() for setting in settings]
    lines += [] if record["layers_are_all"] else ["**Not all layers of the networks are here.**"]
    yield head(record, "Convolutions", f"""\
GFLOP/s (float32) of single convolutions, all contenders in turns on the same cores:\
 {record['rounds']} round(s); in each, after one run that does not count, as many as fit in\
 about {record['budget_seconds']} s, at least one. A run counts 2 flops for each tap, pair of\
 channels and output, padding included, in all directions and by all algorithms alike, so\
 Winograd's can exceed the peak. `direct` is Partita's by the definition; `two`, `four` and\
 `two-four` are Winograd's F(2,3), F(4,3), and F(2,3) along D with F(4,3) along H and W, from plain\
 weights; `fourier` are Fourier transforms of tiles. Fastest is the best of these by the median, layer by layer and\
 direction by direction. Peak is the best rate of multiply-adds in registers in this run. oneDNN's times leave out what\
 brings tensors into its layout; `blocked` is one that it chose.\
 Raw data: `{raw}`.""", ", ".join(present + absent), lines)
    yield disturbance(record, {"turns": record["slices"]})
    for setting in settings:
        first, last = "network | direction | direct> | fastest>", "fastest / best peer> | direct / oneDNN>"
        columns = setting.columns(first, setting.peers, f"{last} | fastest / oneDNN>")
        yield f"""\
## {setting.title}

GFLOP/s of all layers of a network weighted by their flops; the peak is {setting.peak}.\
 A layer that occurs several times counts as often; the gradient of the network's input is left\
 out; the kernels of transposed convolutions stand under the direction of the ordinary\
 convolution. A peer's column is one layout for all layers, and the best peer is the best of\
 these columns. The last two are geometric means over layers, as often as they occur, of\
 Partita's speed by that of oneDNN's better layout of each layer.

{table(columns, summary(record["networks"], setting))}"""
    for network in record["networks"]:
        yield f"## {network['name']}, batch {network['batch']}"
        for setting in settings:
            columns = setting.columns("layer | direction | GFLOP>", setting.all, "fastest / best peer>")
            yield f"""\
{setting.title}: GFLOP/s by the median; peak {setting.peak}; Partita's fastest is bold.

{table(columns, layer_rows(network, setting))}"""


def seconds(layer: dict, direction: str, racer: str) -> float | None:
    """The median of all rounds; None where the contender could not."""
    answers = layer["turns"][direction][racer]
    times = [second for answer in answers for second in answer.get("seconds", ())]
    return median(times) if times else None


def fastest(layer: dict, direction: str, racers: list[str]) -> tuple:
    """The least seconds of these contenders, and whose they are; (None, None) where none could."""
    times = [(seconds(layer, direction, racer), racer) for racer in racers]
    return min((pair for pair in times if pair[0] is not None), default=(None, None))


def needed(networks: list[dict], directions: list[str]) -> list[tuple[dict, str]]:
    """Layers with directions that a training step of the networks computes: nobody asks for the
    gradient of the data that a network is given."""
    pairs = ((layer, direction) for one in networks for layer in one["layers"] for direction in directions)
    return [(layer, direction) for layer, direction in pairs if direction != "backward_data" or not layer.get("first")]


def rate(network: dict, directions: list[str], racers: list[str]) -> float | None:
    """GFLOP/s of all layers, each by the fastest of these contenders; None if any lacks."""
    cases = [(layer, fastest(layer, direction, racers)[0]) for layer, direction in needed([network], directions)]
    if not cases or any(least is None for _, least in cases):
        return None
    flops = sum(layer["count"] * layer["flops"] for layer, _ in cases)
    return flops / sum(layer["count"] * least for layer, least in cases) * 1e-9


def geometric_mean(networks: list[dict], directions: list[str], racers: list[str], rivals: list[str]) -> float | None:
    """Over layers as often as they occur: the rivals' seconds by those of these contenders."""
    logs = count = 0
    for layer, direction in needed(networks, directions):
        own, other = (fastest(layer, direction, some_of)[0] for some_of in (racers, rivals))
        if own is None or other is None:
            return None
        logs += layer["count"] * math.log(other / own)
        count += layer["count"]
    return math.exp(logs / count) if count else None


def summary(networks: list[dict], setting: Setting):
    groups = [(name, [direction]) for direction, name in DIRECTIONS.items()] + [("all", list(DIRECTIONS))]

    def means(some_of: list[dict], directions: list[str]) -> list[str]:
        """Of the direct kernels and of the fastest, by oneDNN."""
        ways = (setting.direct, setting.ours)
        return [told(geometric_mean(some_of, directions, way, setting.onednn), 2) for way in ways]

    for network in networks:
        for name, directions in groups:
            own = [rate(network, directions, way) for way in (setting.direct, setting.ours)]
            theirs = [rate(network, directions, [racer]) for racer in setting.peers]
            best = max(filter(None, theirs), default=None)
            cells = [told(one, 1) for one in own + theirs] + [told(own[1] / best if own[1] and best else None, 2)]
            yield [network["name"], name, *cells, *means([network], directions)]
    for name, directions in groups:
        yield ["all networks", name, *[""] * (3 + len(setting.peers)), *means(networks, directions)]


def told(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def layer_rows(network: dict, setting: Setting):
    for layer in network["layers"]:
        for direction, name in DIRECTIONS.items():
            own, winner = fastest(layer, direction, setting.ours)
            other, _ = fastest(layer, direction, setting.peers)
            cells = [cell(layer, direction, racer, winner) for racer in setting.all]
            times = told(other / own if own and other else None, 2)
            yield [title(layer), name, f"{layer['flops'] * 1e-9:.3f}", *cells, times]


def cell(layer: dict, direction: str, racer: str, winner: str | None) -> str:
    taken = seconds(layer, direction, racer)
    figure = told(taken and layer["flops"] / taken * 1e-9, 1)
    return f"**{figure}**" if racer == winner else figure


def title(layer: dict) -> str:
    times = f", {layer['count']} times" if layer["count"] > 1 else ""
    kind = ", of a transposed one" if layer.get("transposed") else ""
    dims = [i for i in range(3) if (layer["input"][i], layer["kernel"][i]) != (1, 1)] or [2]
    kernel = "x".join(str(layer["kernel"][i]) for i in dims)
    stride = f"/{layer['stride'][2]}" if layer["stride"][2] > 1 else ""
    return f"{layer['name']} {layer['c']}->{layer['f']} {kernel}{stride} @{layer['input'][2]}{times}{kind}"


OPTIONS = {
    "--budget": {"type": float, "default": 0.1, "help": "seconds of a turn, about"},
    "--threads": numbers(1, 2),
    "--networks": {"nargs": "+", "help": "some of the networks only"},
    "--layers": {"type": whole, "help": "the first layers only"},
    "--levels": some(tuple(GUESS_FLOPS)) | {"help": "default: all"},
}

if __name__ == "__main__":
    Record("convolutions", measure, page, OPTIONS).take()
