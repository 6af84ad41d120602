"""Records training steps of CosmoFlow, Partita and PyTorch side by side on this machine's cores.

For each size the contenders take turns: all of them once is a round, and there are several rounds,
so that what disturbs the machine disturbs all. A turn of Partita is a `partita train`, whose first
two steps it leaves out itself; a turn of PyTorch is two steps that do not count, then `--steps`.
The figure of a turn is the median of its steps, that of a contender the median of its turns. A step
of Partita begins with reading the sample from its file; PyTorch's batch is in memory already.

Partita predicts before it trains, from kernels measured here: `prediction.json` must be older than
the run's first step and hold what the run is compared with, or there is no record.

PyTorch also runs with two samples a step: its choice of convolution kernels depends on the batch,
and with one small sample it takes slow ones. So no ratio needs to rest on that choice.

Beside them two one-rank runs side by side, each pinned to its own core, say what two ranks would do
if they had nothing to tell each other. And each step is compared with its roofline: the sum over the
tasks of the program of the longer of flops / peak and bytes / triad, both rates measured here.

Writes records/<date>-cosmoflow-step.md and, with all raw figures, the same name with .json.
Without PyTorch it says so and records Partita alone.
"""

import argparse
import contextlib
import importlib.util
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import contest
import record_text
import roofline
from contest import ROOT, Failure, Served, counted, run_partita, say, watched

PEER = ROOT / "bench" / "peer_cosmoflow.py"
TRAINING_SAMPLES = 5
WARMUP = 2

RUN_FILE = """model = "cosmoflow@{size}"
data = "universes{size}"
output = "out"
ranks = {ranks}
strategy = "{strategy}"
threads = {threads}
batch = {batch}
epochs = {epochs}
seed = 1
kernels = "cpu"
transform = "log1p"

[optimizer]
kind = "adam"

[schedule]
kind = "constant"
learning_rate = 1e-4
"""


class Partita:
    """A way to run `partita train`; it starts anew at each turn."""

    def __init__(self, options, folder, size, ranks, threads, strategy, batch):
        self.options, self.folder, self.size = options, folder, size
        self.ranks, self.threads, self.strategy, self.batch = ranks, threads, strategy, batch
        self.name = f"Partita, {counted(ranks, 'rank')} x {counted(threads, 'thread')}, {strategy}"
        self.cores = ranks * threads
        self.facts = {"ranks": ranks, "threads": threads, "strategy": strategy}

    def turn(self):
        full_steps = TRAINING_SAMPLES // self.batch
        epochs = math.ceil((self.options.steps + WARMUP) / full_steps)
        (self.folder / "run.toml").write_text(RUN_FILE.format(epochs=epochs, **vars(self)))
        output = self.folder / "out"
        shutil.rmtree(output, ignore_errors=True)
        run_partita(self.options, self.folder, ["train", "run.toml"])
        prediction = json.loads((output / "prediction.json").read_text())
        result = json.loads((output / "result.json").read_text())
        comparison = result["comparison"]
        ahead = modified(output / "result.json") - modified(output / "prediction.json")
        self.check(prediction, result, ahead)
        return {
            "step_seconds": result["step_seconds_median"],
            "steps": result["steps_measured"],
            "digest": result["digest"],
            "predicted_seconds": prediction["iteration_seconds"],
            "prediction_basis": prediction["basis"],
            "prediction_breakdown": prediction["breakdown"],
            "prediction_stored_before_result_seconds": ahead,
            "training_seconds": result["seconds"],
            "comparison": comparison,
            "tasks": roofline.tasks(output),
            "memory": result["memory"],
        }

    def check(self, prediction, result, ahead):
        """That the prediction is of this program, was compared, and is older than any step."""
        compared = result["comparison"]["iteration"]["predicted"]
        if prediction["digest"] != result["digest"] or prediction["iteration_seconds"] != compared:
            raise Failure(f"{self.name}: prediction.json is not what the run was compared with")
        if ahead < result["seconds"]:
            raise Failure(
                f"{self.name}: prediction.json was stored {ahead:.2f} s before the result, but the"
                f" training took {result['seconds']:.2f} s"
            )

    def processor_seconds(self):
        return 0.0

    def close(self):
        pass


class SideBySide:
    """One-rank runs that know nothing of each other, on a core each, started together.

    Its turn is one step of all of them, at the mean of their rates.
    """

    def __init__(self, options, folder, size, count):
        self.name = f"Partita, {counted(count, 'run')} of 1 rank side by side"
        self.batch = self.cores = count
        self.facts = {"runs": count}
        self.options, self.cores_used = options, contest.own_cores()[:count]
        self.folders = [folder / f"side{core}" for core in self.cores_used]
        for path in self.folders:
            path.mkdir()
            (path / f"universes{size}").symlink_to(folder / f"universes{size}")
        self.fields = {"size": size, "ranks": 1, "threads": 1, "strategy": "data=1", "batch": 1}
        # Measures the kernels, so that afterwards both begin to train at the same time.
        self.train(1)

    def train(self, epochs):
        started = []
        for core, folder in zip(self.cores_used, self.folders):
            (folder / "run.toml").write_text(RUN_FILE.format(epochs=epochs, **self.fields))
            shutil.rmtree(folder / "out", ignore_errors=True)
            command = [str(self.options.partita), "train", "run.toml"]
            environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            pinned = contest.on_cores([core])
            started.append(
                subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=pinned, **quiet)
            )
        ends = [process.wait() for process in started]
        if any(ends):
            raise Failure(f"{self.name}: ended with {ends}")

    def turn(self):
        self.train(math.ceil((self.options.steps + WARMUP) / TRAINING_SAMPLES))
        results = [json.loads((f / "out" / "result.json").read_text()) for f in self.folders]
        each = [result["step_seconds_median"] for result in results]
        return {
            "step_seconds": len(each) / sum(1 / seconds for seconds in each),
            "steps": min(result["steps_measured"] for result in results),
            "seconds": each,
        }

    def processor_seconds(self):
        return 0.0

    def close(self):
        for folder in self.folders:
            shutil.rmtree(folder)


class Torch(Served):
    """A PyTorch process that waits between its turns."""

    def __init__(self, options, size, threads, layout, batch):
        self.options, self.batch, self.layout = options, batch, layout
        command = [sys.executable, PEER, "--serve", "--size", size, "--batch", batch]
        command += ["--threads", threads, "--layout", layout]
        super().__init__(f"PyTorch, {counted(threads, 'thread')}, {layout}", command, threads)

    def steps(self, count):
        return self.demand(f"step {count}")["seconds"]

    def turn(self):
        self.steps(WARMUP)
        seconds = self.steps(self.options.steps)
        return {"step_seconds": median(seconds), "steps": len(seconds), "seconds": seconds}


PROGRAMS = {Partita: "Partita", SideBySide: "Partita side by side", Torch: "PyTorch"}


def modified(path):
    return path.stat().st_mtime


def contenders(options, folder, size, with_torch):
    """All that take turns at a size, started; neighbors in a round compete for the same figure."""
    yield Partita(options, folder, size, 1, 1, "data=1", 1)
    yield from torches(options, size, 1, 1, with_torch)
    yield from torches(options, size, 1, 2, with_torch)
    yield Partita(options, folder, size, 1, 2, "data=1", 1)
    yield Partita(options, folder, size, 2, 1, "depth=2", 1)
    if len(contest.own_cores()) >= 2:
        yield SideBySide(options, folder, size, 2)
    yield from torches(options, size, 2, 1, with_torch)
    yield Partita(options, folder, size, 2, 1, "data=2", 2)
    yield from torches(options, size, 2, 2, with_torch)


def torches(options, size, threads, batch, with_torch):
    if with_torch:
        for layout in ("default", "channels_last"):
            yield Torch(options, size, threads, layout, batch)


def measure_size(options, folder, size, with_torch):
    with contextlib.ExitStack() as stack:
        racers = []
        for racer in contenders(options, folder, size, with_torch):
            stack.callback(racer.close)
            racers.append(racer)
        gauges = [contest.gauge(options.kernels, cores) for cores in (1, 2)]
        for gauge in gauges:
            stack.callback(gauge.close)
        rates = {str(gauge.cores): [] for gauge in gauges}
        turns = [[] for _ in racers]
        for number in range(1, options.rounds + 1):
            for gauge in gauges:
                rates[str(gauge.cores)].append(gauge.demand("machine"))
            for racer, taken in zip(racers, turns):
                taken.append(watched([racer], racer.turn))
                step = taken[-1]["step_seconds"]
                who = f"{racer.name}, batch {racer.batch}"
                say(f"{size}, round {number}: {who}: {step:.4f} s a step")
        racers = [
            {
                "program": PROGRAMS[type(r)],
                "name": r.name,
                "batch": r.batch,
                "cores": r.cores,
                "facts": r.facts,
                "tasks": roofline.merged(t) if isinstance(r, Partita) else [],
                "turns": t,
            }
            for r, t in zip(racers, turns)
        ]
        return {"rates": rates, "contenders": racers}


def make_dataset(options, folder, size):
    start = time.monotonic()
    arguments = ["data", "cosmology", "--grid", str(size), "--universes", "6"]
    arguments += ["--validation", "0.17", "--test", "0", "--out", f"universes{size}"]
    run_partita(options, folder, arguments)
    seconds = time.monotonic() - start
    say(f"made 6 universes of {size}^3 in {seconds:.1f} s")
    return seconds


def record(options, folder):
    with_torch = importlib.util.find_spec("torch") is not None
    if not with_torch:
        say(f"This Python ({platform.python_version()}) lacks PyTorch: recording Partita alone.")
        say("For the comparison: pip install torch, then run this again.")
    started = datetime.now(timezone.utc)
    words = ["--steps", options.steps, "--sizes", *options.sizes]
    head = {
        "started": started.isoformat(timespec="seconds"),
        "command": contest.command_line("record.py", options, words),
        "machine": contest.describe_machine(options, folder),
        "versions": contest.describe_versions(options, folder),
        "with_torch": with_torch,
        "rounds": options.rounds,
        "steps": options.steps,
    }
    sizes = []
    for size in options.sizes:
        seconds = make_dataset(options, folder, size)
        measured = measure_size(options, folder, size, with_torch)
        sizes.append({"size": size, "dataset_seconds": seconds} | measured)
        shutil.rmtree(folder / f"universes{size}")
    finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return head | {"finished": finished, "sizes": sizes}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    sizes = {"nargs": "+", "choices": (32, 64, 128), "default": [64, 128]}
    parser.add_argument("--sizes", type=int, **sizes)
    parser.add_argument("--steps", type=contest.whole, default=8, help="timed steps of a turn")
    contest.take(parser, "cosmoflow-step", record, record_text.write)


if __name__ == "__main__":
    main()
