"""Contenders of records: a `partita train` at each turn, and peers that wait between their turns."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from runner import ROOT, Bench, Contender, Failure, counted, on_cores, own_cores, processor_seconds_of, say

# Steps that `partita train` leaves out of its figures.
WARMUP = 2
LAYOUTS = ("default", "channels_last")
SCALED = {"scale": 0.01}


@dataclass(frozen=True)
class Scene:
    """A network, and the arguments of `partita data` that make its data."""

    model: str
    maker: tuple
    training_samples: int
    transform: str | dict = "identity"

    @property
    def data(self) -> str:
        return f"data-{self.model}"

    def make(self, bench: Bench) -> float:
        """The seconds that it took."""
        start = time.monotonic()
        bench.run("data", *self.maker, "--test", 0, "--out", self.data)
        return time.monotonic() - start

    def epochs(self, batch: int, steps: int) -> int:
        return math.ceil((steps + WARMUP) / (self.training_samples // batch))


def cosmology(size: int, universes: int = 5) -> Scene:
    """CosmoFlow on universes of so many voxels a side, one more of them to validate."""
    maker = ("cosmology", "--grid", size, "--universes", universes + 1, "--validation", 1 / (universes + 1))
    return Scene(f"cosmoflow@{size}", maker, universes, "log1p")


def segmentation(size: int, volumes: int) -> Scene:
    """3D U-Net on so many volumes, one more of them to validate."""
    maker = ("segmentation", "--grid", size, "--volumes", volumes + 1, "--validation", 1 / (volumes + 1))
    return Scene(f"unet3d@{size}", maker, volumes, SCALED)


def shapes(model: str, images: int, classes: int = 1000, size: int = 0) -> Scene:
    """A classifier `NAME@PIXELS` on so many images, and half as many to validate."""
    maker = ("shapes", "--size", size or model.partition("@")[2], "--images", images * 3 // 2, "--classes", classes)
    return Scene(model, (*maker, "--validation", 1 / 3), images, SCALED)


def toml(settings: dict) -> str:
    """A run file, whose settings that are dicts are tables."""

    def value(of: Any) -> str:
        if isinstance(of, dict):
            return "{ " + ", ".join(f"{key} = {value(one)}" for key, one in of.items()) + " }"
        return json.dumps(of)

    lines = [f"{key} = {value(one)}" for key, one in settings.items() if not isinstance(one, dict)]
    for name, table in settings.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {value(one)}" for key, one in table.items())]
    return "\n".join(lines) + "\n"


def settings_of(
    model: str, data: str, batch: int, epochs: int, optimizer: str = "adam", schedule: str = "constant",
    rate: float = 1e-4, **more,
) -> dict:
    """Those of a run file, one rank of one thread unless `more` says so."""
    base = {"model": model, "data": data, "output": "out", "batch": batch, "epochs": epochs, "seed": 1}
    base |= {"ranks": 1, "strategy": "data=1", "optimizer": {"kind": optimizer}}
    return base | {"schedule": {"kind": schedule, "learning_rate": rate}} | more


def trained(bench: Bench, settings: dict, *words: str, launcher: Sequence = ()) -> dict:
    """What `result.json` of a training holds."""
    prepare(bench, settings)
    bench.run("train", "run.toml", *words, launcher=launcher)
    return result_of(bench)


def prepare(bench: Bench, settings: dict) -> None:
    (bench.folder / "run.toml").write_text(toml(settings))
    shutil.rmtree(bench.folder / "out", ignore_errors=True)


def result_of(bench: Bench) -> dict:
    return json.loads((bench.folder / "out" / "result.json").read_text())


def figures(result: dict, *more: str) -> dict:
    """What counts of a run."""
    kept = {"step_seconds": result["step_seconds_median"], "steps": result["steps_measured"]}
    return kept | {key: result[key] for key in ("digest", *more)}


def figures_with_memory(result: dict) -> dict:
    return figures(result, "memory")


class Training(Contender):
    """A way to run `partita train`, which starts anew at each turn.

    `launcher` stands before the command, `words` after it, and `settings` are more ones of the run file; `facts` are
    kept in the record. `figures` chooses what a turn keeps of the result.
    """

    def __init__(
        self, bench: Bench, scene: Scene, strategy: str, batch: int, steps: int, ranks: int = 1, threads: int = 1,
        launcher: Sequence = (), words: Sequence = (), name: str | None = None, settings: dict | None = None,
        figures: Callable[[dict], dict] = figures, **facts,
    ) -> None:
        self.bench, self.scene, self.strategy, self.batch, self.steps = bench, scene, strategy, batch, steps
        self.ranks, self.cores, self.launcher, self.words = ranks, ranks * threads, launcher, words
        self.name = name or f"Partita, {counted(ranks, 'rank')} x {counted(threads, 'thread')}, {strategy}"
        self.facts = {"ranks": ranks, "threads": threads, "strategy": strategy} | facts
        self.more, self.figures = settings or {}, figures

    def settings(self) -> dict:
        epochs = self.scene.epochs(self.batch, self.steps)
        own = {key: self.facts[key] for key in ("ranks", "threads", "strategy")}
        own |= {"kernels": "cpu", "transform": self.scene.transform}
        return settings_of(self.scene.model, self.scene.data, self.batch, epochs, **own) | self.more

    def train(self) -> dict:
        return trained(self.bench, self.settings(), *self.words, launcher=self.launcher)

    def turn(self) -> dict:
        return self.figures(self.train())


class Served(Contender):
    """A process that answers lines with lines of JSON and waits in between.

    It keeps to the first `threads` cores that this process may use; where its threads lie among them
    is left to the system. `variables` are those of its environment besides. Its turn is `warmup` steps that do not
    count, then `steps` that do.
    """

    def __init__(
        self, name: str, command: Sequence, threads: int, variables: dict | None = None, program: str = "PyTorch",
        batch: int = 1, steps: int = 1, warmup: int = 1,
    ) -> None:
        self.name, self.cores, self.program = name, threads, program
        self.batch, self.steps, self.warmup = batch, steps, warmup
        start = time.monotonic()
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)} | (variables or {}),
            preexec_fn=on_cores(own_cores()[:threads]),
        )
        self.facts = self.read()["ready"] | {"seconds_to_start": time.monotonic() - start}

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise Failure(f"{self.name}: the process ended with code {self.process.wait()}")
        return json.loads(line)

    def ask(self, line: str) -> dict:
        """The answer, which may be {"error": ...}."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.read()

    def demand(self, line: str) -> dict:
        answer = self.ask(line)
        if "error" in answer:
            raise Failure(f"{self.name}: {answer['error']}")
        return answer

    def turn(self) -> dict:
        self.demand(f"step {self.warmup}")
        seconds = self.demand(f"step {self.steps}")["seconds"]
        return {"step_seconds": median(seconds), "steps": len(seconds), "seconds": seconds}

    def processor_seconds(self) -> float:
        return processor_seconds_of(self.process.pid)

    def close(self) -> None:
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def peer(script: str, *words) -> list:
    """The command of a peer in this Python."""
    return [sys.executable, ROOT / "bench" / script, *words]


def has(package: str) -> bool:
    """Whether this Python has a package; says so if not."""
    found = importlib.util.find_spec(package) is not None
    if not found:
        say(f"This Python lacks {package}, which is left out: pip install {package}")
    return found


def model_text(bench: Bench, model: str) -> Path:
    """A file with the text that peers read a network from."""
    path = bench.folder / f"{model}.txt"
    path.write_text(bench.run("inspect", model, "--text"))
    return path


def check_parameters(contender: Contender, count: int) -> None:
    """That a peer computes the same network."""
    own = contender.facts.get("parameters", count)
    if own != count:
        raise Failure(f"{contender.name}: {own} parameters instead of {count}")


def gauge(bench: Bench, threads: int) -> Served:
    """A process that measures what so many cores can do, where the example of kernels is built."""
    return Served(f"gauge of {counted(threads, 'core')}", [bench.options.kernels, threads], threads)
