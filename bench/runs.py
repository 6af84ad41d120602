"""Trainings as contenders of a record: each turn is a `partita train` of its own."""

import json
import math
import shutil
import time
from dataclasses import dataclass

from contest import counted, run_partita

# Steps that `partita train` leaves out of its figures.
WARMUP = 2

RUN_FILE = """model = "{model}"
data = "{data}"
output = "out"
ranks = {ranks}
strategy = "{strategy}"
threads = {threads}
batch = {batch}
epochs = {epochs}
seed = 1
kernels = "cpu"
transform = {transform}

[optimizer]
kind = "adam"

[schedule]
kind = "constant"
learning_rate = 1e-4
"""


@dataclass(frozen=True)
class Scene:
    """A network, and the arguments of `partita data` that make its data."""

    model: str
    maker: tuple
    training_samples: int
    transform: str = '"identity"'

    @property
    def data(self):
        return f"data-{self.model}"

    def make(self, options, folder):
        """The seconds that it took."""
        start = time.monotonic()
        maker = [*map(str, self.maker), "--test", "0", "--out", self.data]
        run_partita(options, folder, ["data", *maker])
        return time.monotonic() - start

    def epochs(self, batch, steps):
        return math.ceil((steps + WARMUP) / (self.training_samples // batch))


def cosmology(size, universes=5):
    """CosmoFlow on universes of so many voxels a side, one more of them to validate."""
    share = 1 / (universes + 1)
    maker = ("cosmology", "--grid", size, "--universes", universes + 1, "--validation", share)
    return Scene(f"cosmoflow@{size}", maker, universes, '"log1p"')


def segmentation(size, volumes):
    """3D U-Net on so many volumes, one more of them to validate."""
    share = 1 / (volumes + 1)
    maker = ("segmentation", "--grid", size, "--volumes", volumes + 1, "--validation", share)
    return Scene(f"unet3d@{size}", maker, volumes, "{scale = 0.01}")


def shapes(model, images):
    """A classifier of 1000 classes `NAME@PIXELS` on so many images, and half as many to validate."""
    size = model.partition("@")[2]
    maker = ("shapes", "--size", size, "--images", images * 3 // 2, "--classes", 1000)
    return Scene(model, (*maker, "--validation", 1 / 3), images, "{scale = 0.01}")


class Training:
    """A way to run `partita train`; it starts anew at each turn.

    `launcher` is what stands before the command under MPI, an empty list where ranks are threads.
    """

    def __init__(self, options, folder, scene, strategy, batch, steps, ranks=1, threads=1, launcher=()):
        self.options, self.folder, self.scene, self.steps = options, folder, scene, steps
        self.ranks, self.threads, self.strategy, self.batch = ranks, threads, strategy, batch
        self.launcher = [str(word) for word in launcher]
        self.words = ["train", "run.toml"]
        self.name = f"Partita, {counted(ranks, 'rank')} x {counted(threads, 'thread')}, {strategy}"
        self.cores = ranks * threads
        self.facts = {"ranks": ranks, "threads": threads, "strategy": strategy}

    @property
    def output(self):
        return self.folder / "out"

    def run_file(self):
        fields = {"model": self.scene.model, "data": self.scene.data, "transform": self.scene.transform}
        fields |= self.facts | {"batch": self.batch}
        return RUN_FILE.format(epochs=self.scene.epochs(self.batch, self.steps), **fields)

    def prepare(self):
        (self.folder / "run.toml").write_text(self.run_file())
        shutil.rmtree(self.output, ignore_errors=True)

    def train(self):
        """What `result.json` holds."""
        self.prepare()
        run_partita(self.options, self.folder, self.words, self.launcher)
        return self.result()

    def result(self):
        return json.loads((self.output / "result.json").read_text())

    def turn(self):
        return figures(self.train())

    def processor_seconds(self):
        return 0.0

    def close(self):
        pass


def figures(result):
    """What counts of a run."""
    return {
        "step_seconds": result["step_seconds_median"],
        "steps": result["steps_measured"],
        "digest": result["digest"],
    }
