"""Records every convolution of five networks, Partita beside oneDNN and PyTorch, in turns.

The layers are those of bench/convolutions.json, in three directions, on one core and on two, at the
highest instruction level of the processor and at AVX2. For each of these all contenders run once a
round, one after the other, each one run that does not count and then as many that do as fit in
`--budget` at 50 GFLOP/s a core (25 at AVX2). Contenders are processes that wait in between, so what
disturbs the machine disturbs all. The machine's triad is measured in the same run, before each network
of each round, and its peak (multiply-adds in registers) before each layer, because the clock changes.

Partita computes directly and, where there is such a kernel, by Winograd's algorithm with each of its
tiles, from plain weights, whose transform is timed. oneDNN is driven by bench/peer_onednn.cpp, which is
compiled here against the PyPI packages onednn-cpu-gomp and onednn-devel-cpu-gomp: once with layouts of
its own choice (`blocked`), once with activations channels-last as Partita has them. What brings tensors
into a layout is not timed. For x86-64 this oneDNN has no Winograd kernels. PyTorch's calls are single
operators, in both of its layouts. At AVX2, variables keep the peers to that level, and what oneDNN names
as its implementation is looked at.

Writes records/<date>-convolutions.md and, with all raw figures, the same name with .json.
Without a peer it says so and records the rest.
"""

import argparse
import contextlib
import functools
import importlib.metadata
import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import contest
import record_convolutions_text
from contest import ROOT, Failure, Served, counted, say, watched

LAYERS = ROOT / "bench" / "convolutions.json"
PEER_TORCH = ROOT / "bench" / "peer_convolution.py"
PEER_ONEDNN = ROOT / "bench" / "peer_onednn.cpp"
ONEDNN_PACKAGES = ("onednn-cpu-gomp", "onednn-devel-cpu-gomp")
DIRECTIONS = ("forward", "backward_data", "backward_weight")
# Partita's, as crates/cpu/examples/convolution.rs names them; the first has a kernel of everything.
ALGORITHMS = ("direct", "two", "four", "two-four", "fourier")
LAYOUTS = {"oneDNN": ("blocked", "channels_last"), "PyTorch": ("default", "channels_last")}
# What a core is taken to do at a level when repeats are counted.
GUESS_FLOPS = {"avx512": 50e9, "avx2": 25e9, "portable": 10e9}
REPEATS_MAX = 20


def build_onednn(folder):
    """The driver of oneDNN; None, with the reason said, where it cannot be built."""
    try:
        files = [f for name in ONEDNN_PACKAGES for f in importlib.metadata.files(name) or ()]
    except importlib.metadata.PackageNotFoundError as missing:
        say(f"oneDNN is left out: pip install {' '.join(ONEDNN_PACKAGES)} ({missing})")
        return None
    header = [f for f in files if str(f).endswith("include/oneapi/dnnl/dnnl.hpp")]
    library = [f for f in files if f.name == "libdnnl.so"]
    if not header or not library:
        say("oneDNN is left out: its packages hold no dnnl.hpp or no libdnnl.so")
        return None
    include = header[0].locate().resolve().parents[2]
    folder_of_library = library[0].locate().resolve().parent
    driver = folder / "peer_onednn"
    command = ["g++", "-O2", "-std=c++17", f"-I{include}", str(PEER_ONEDNN), "-o", str(driver)]
    command += [f"-L{folder_of_library}", f"-Wl,-rpath,{folder_of_library}", "-ldnnl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        say(f"oneDNN is left out: g++ cannot be run ({error})")
        return None
    if done.returncode != 0:
        say(f"oneDNN is left out: its driver does not compile: {done.stderr}")
        return None
    return driver


def has_torch():
    if importlib.util.find_spec("torch") is not None:
        return True
    say("PyTorch is left out: pip install torch")
    return False


@dataclass(frozen=True)
class Racer:
    """What takes a turn: a process, at an instruction level on some cores."""

    program: str
    # Algorithm or layout.
    way: str
    level: str
    process: Served

    @property
    def cores(self):
        return self.process.cores

    @property
    def setting(self):
        return f"{self.level} {self.cores}"

    @property
    def gauges(self):
        """Whether the rates of the machine are measured by it."""
        return self.way == ALGORITHMS[0]

    def ask(self, line):
        answer = self.process.ask(line)
        if self.program == "Partita" and "error" in answer:
            raise Failure(f"{self.process.name}: {answer['error']}")
        if self.level == "avx2" and "avx512" in str(answer.get("implementation")):
            raise Failure(f"{self.process.name}: {answer['implementation']} is no AVX2")
        if "seconds" in answer:
            answer["seconds"] = [float(f"{s:.6g}") for s in answer["seconds"]]
        return answer

    def entry(self):
        kept = {"program": self.program, "way": self.way, "level": self.level, "cores": self.cores}
        return kept | {"facts": self.process.facts}


def contenders(options, machine, onednn, with_torch):
    """All that take turns, by level and number of cores."""
    for level, threads in settings(options, machine):
        limits = contest.limits(machine, level)
        for way in ALGORITHMS:
            command = [options.kernels, threads, way, level]
            yield Racer("Partita", way, level, Served(f"Partita, {way}", command, threads))
        for way in LAYOUTS["oneDNN"] if onednn else ():
            peer = Served(f"oneDNN, {way}", [onednn, way, threads], threads, limits)
            yield Racer("oneDNN", way, level, peer)
        for way in LAYOUTS["PyTorch"] if with_torch else ():
            command = [sys.executable, PEER_TORCH, "--threads", threads, "--layout", way]
            yield Racer("PyTorch", way, level, Served(f"PyTorch, {way}", command, threads, limits))


def settings(options, machine):
    """Levels with numbers of cores."""
    levels = contest.levels(machine)
    chosen = [level for level in levels if level in (options.levels or levels)]
    if not chosen:
        raise Failure(f"this processor has only {' and '.join(levels)} of these levels")
    return [(level, threads) for level in chosen for threads in options.threads]


def flops_of(batch, layer):
    """Of any direction: 2 for each tap, pair of channels and output; padding included."""
    reach = [(k - 1) * layer["dilation"] + 1 for k in layer["kernel"]]
    sizes = zip(layer["input"], layer["padding"], reach, layer["stride"])
    outputs = math.prod((extent + 2 * p - r) // s + 1 for extent, p, r, s in sizes)
    taps = math.prod(layer["kernel"])
    return 2 * batch * outputs * taps * layer["c"] // layer["groups"] * layer["f"]


def line_of(batch, layer, direction, repeats):
    lists = (layer[key] for key in ("input", "kernel", "stride", "padding"))
    numbers = [batch, layer["c"], layer["f"], *(n for each in lists for n in each)]
    numbers += [layer["dilation"], layer["groups"]]
    return " ".join(map(str, [*numbers, direction, repeats]))


def networks(options):
    """The networks that were asked for, the layers counted, and no turns taken yet."""
    chosen = []
    for network in json.loads(LAYERS.read_text())["networks"]:
        if options.networks and network["name"] not in options.networks:
            continue
        network["layers"] = network["layers"][: options.layers]
        for layer in network["layers"]:
            layer["flops"] = flops_of(network["batch"], layer)
            layer["turns"] = {direction: {} for direction in DIRECTIONS}
        chosen.append(network)
    if not chosen:
        raise Failure(f"no network in {LAYERS.name} has one of these names: {options.networks}")
    return chosen


def measure_network(options, network, racers, rates):
    """One round: adds to the turns of each layer what each contender answered."""
    gauge(racers, rates, "machine")
    for layer in network["layers"]:
        gauge(racers, rates, "peak")
        for direction, turns in layer["turns"].items():
            for number, racer in enumerate(racers):
                guess = layer["flops"] / (GUESS_FLOPS[racer.level] * racer.cores)
                repeats = min(REPEATS_MAX, max(1, int(options.budget / guess)))
                answer = racer.ask(line_of(network["batch"], layer, direction, repeats))
                turns.setdefault(str(number), []).append(answer)
    return {"network": network["name"]}


def gauge(racers, rates, what):
    """Adds the rates of the machine, which the processes of Partita measure."""
    for racer in racers:
        if racer.gauges:
            rates[racer.setting].append(racer.process.demand(what))


def measure(options, machine, onednn, with_torch):
    taken, slices, racers = networks(options), [], []
    with contextlib.ExitStack() as stack:
        for racer in contenders(options, machine, onednn, with_torch):
            stack.callback(racer.process.close)
            racers.append(racer)
        rates = {racer.setting: [] for racer in racers}
        processes = [racer.process for racer in racers]
        for number in range(1, options.rounds + 1):
            for network in taken:
                turn = functools.partial(measure_network, options, network, racers, rates)
                part = watched(processes, turn)
                slices.append(part)
                say(f"round {number}: {network['name']} in {part['turn_seconds']:.0f} s")
        described = [racer.entry() for racer in racers]
    return {"contenders": described, "rates": rates, "slices": slices, "networks": taken}


def record(options, folder):
    onednn, with_torch = build_onednn(folder), has_torch()
    words = ["--budget", options.budget, "--threads", *options.threads]
    words += ["--networks", *options.networks] if options.networks else []
    words += ["--layers", options.layers] if options.layers else []
    words += ["--levels", *options.levels] if options.levels else []
    head = contest.head(options, folder, "record_convolutions.py", words)
    head |= {"budget_seconds": options.budget, "layers_are_all": options.layers is None}
    measured = measure(options, head["machine"], onednn, with_torch)
    return head | {"finished": contest.now()} | measured


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--networks", nargs="+", help="some of the networks only")
    parser.add_argument("--layers", type=contest.whole, help="the first layers only")
    parser.add_argument("--threads", type=contest.whole, nargs="+", default=[1, 2])
    parser.add_argument("--levels", nargs="+", choices=tuple(GUESS_FLOPS), help="default: all")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of a turn, about")
    contest.take(parser, "convolutions", record, record_convolutions_text.write)


if __name__ == "__main__":
    main()
