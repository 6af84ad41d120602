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
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import contest
import record_text
import roofline
from contest import ROOT, Failure, Served, counted, say
from runs import WARMUP, Training, cosmology, figures

PEER = ROOT / "bench" / "peer_cosmoflow.py"


class Partita(Training):
    """A training with its prediction and its trace."""

    def turn(self):
        result = self.train()
        prediction = json.loads((self.output / "prediction.json").read_text())
        ahead = modified(self.output / "result.json") - modified(self.output / "prediction.json")
        self.check(prediction, result, ahead)
        return figures(result) | {
            "predicted_seconds": prediction["iteration_seconds"],
            "prediction_basis": prediction["basis"],
            "prediction_breakdown": prediction["breakdown"],
            "prediction_stored_before_result_seconds": ahead,
            "training_seconds": result["seconds"],
            "comparison": result["comparison"],
            "tasks": roofline.tasks(self.output),
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


class SideBySide:
    """One-rank runs that know nothing of each other, on a core each, started together.

    Its turn is one step of all of them, at the mean of their rates.
    """

    def __init__(self, options, folder, scene, count):
        self.name = f"Partita, {counted(count, 'run')} of 1 rank side by side"
        self.batch = self.cores = count
        self.facts = {"runs": count}
        self.options, self.cores_used = options, contest.own_cores()[:count]
        self.runs = []
        for core in self.cores_used:
            path = folder / f"side{core}"
            path.mkdir()
            (path / scene.data).symlink_to(folder / scene.data)
            self.runs.append(Training(options, path, scene, "data=1", 1, options.steps))
        # Measures the kernels, so that afterwards both begin to train at the same time.
        self.train()

    def train(self):
        started = []
        for core, run in zip(self.cores_used, self.runs):
            run.prepare()
            command = [str(self.options.partita), "train", "run.toml"]
            environment = os.environ | {"XDG_CACHE_HOME": str(run.folder / "cache")}
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            pinned = contest.on_cores([core])
            started.append(
                subprocess.Popen(command, cwd=run.folder, env=environment, preexec_fn=pinned, **quiet)
            )
        ends = [process.wait() for process in started]
        if any(ends):
            raise Failure(f"{self.name}: ended with {ends}")

    def turn(self):
        self.train()
        results = [run.result() for run in self.runs]
        each = [result["step_seconds_median"] for result in results]
        return {
            "step_seconds": len(each) / sum(1 / seconds for seconds in each),
            "steps": min(result["steps_measured"] for result in results),
            "seconds": each,
        }

    def processor_seconds(self):
        return 0.0

    def close(self):
        for run in self.runs:
            shutil.rmtree(run.folder)


class Torch(Served):
    """A PyTorch process that waits between its turns."""

    def __init__(self, options, size, threads, layout, batch):
        self.options, self.batch, self.layout = options, batch, layout
        command = [sys.executable, PEER, "--serve", "--size", size, "--batch", batch]
        command += ["--threads", threads, "--layout", layout]
        super().__init__(f"PyTorch, {counted(threads, 'thread')}, {layout}", command, threads)

    def turn(self):
        return self.timed(WARMUP, self.options.steps)


PROGRAMS = {Partita: "Partita", SideBySide: "Partita side by side", Torch: "PyTorch"}


def modified(path):
    return path.stat().st_mtime


def contenders(options, folder, size, with_torch):
    """All that take turns at a size, started; neighbors in a round compete for the same figure."""
    scene, steps = cosmology(size), options.steps
    yield Partita(options, folder, scene, "data=1", 1, steps)
    yield from torches(options, size, 1, 1, with_torch)
    yield from torches(options, size, 1, 2, with_torch)
    yield Partita(options, folder, scene, "data=1", 1, steps, threads=2)
    yield Partita(options, folder, scene, "depth=2", 1, steps, ranks=2)
    if len(contest.own_cores()) >= 2:
        yield SideBySide(options, folder, scene, 2)
    yield from torches(options, size, 2, 1, with_torch)
    yield Partita(options, folder, scene, "data=2", 2, steps, ranks=2)
    yield from torches(options, size, 2, 2, with_torch)


def torches(options, size, threads, batch, with_torch):
    if with_torch:
        for layout in ("default", "channels_last"):
            yield Torch(options, size, threads, layout, batch)


def measure_size(options, folder, size, with_torch):
    with contextlib.ExitStack() as stack:
        racers = contest.started(stack, contenders(options, folder, size, with_torch))
        gauges = contest.started(stack, (contest.gauge(options.kernels, cores) for cores in (1, 2)))
        rates = {str(gauge.cores): [] for gauge in gauges}

        def before():
            for gauge in gauges:
                rates[str(gauge.cores)].append(gauge.demand("machine"))

        turns = contest.rounds(options.rounds, racers, f"cosmoflow@{size}", before)
        racers = [
            contest.entry(r, PROGRAMS[type(r)], t)
            | {"tasks": roofline.merged(t) if isinstance(r, Partita) else []}
            for r, t in zip(racers, turns)
        ]
        return {"rates": rates, "contenders": racers}


def record(options, folder):
    with_torch = importlib.util.find_spec("torch") is not None
    if not with_torch:
        say(f"This Python ({platform.python_version()}) lacks PyTorch: recording Partita alone.")
        say("For the comparison: pip install torch, then run this again.")
    words = ["--steps", options.steps, "--sizes", *options.sizes]
    head = contest.head(options, folder, "record.py", words)
    head |= {"with_torch": with_torch, "steps": options.steps}
    sizes = []
    for size in options.sizes:
        scene = cosmology(size)
        seconds = scene.make(options, folder)
        measured = measure_size(options, folder, size, with_torch)
        sizes.append({"size": size, "dataset_seconds": seconds} | measured)
        shutil.rmtree(folder / scene.data)
    return head | {"finished": contest.now(), "sizes": sizes}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    sizes = {"nargs": "+", "choices": (32, 64, 128), "default": [64, 128]}
    parser.add_argument("--sizes", type=int, **sizes)
    parser.add_argument("--steps", type=contest.whole, default=8, help="timed steps of a turn")
    contest.take(parser, "cosmoflow-step", record, record_text.write)


if __name__ == "__main__":
    main()
