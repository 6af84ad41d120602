"""Records how the error of predicted parameters falls with the size of a sample.

The same universes are samples as a whole and as the sub-volumes that cover them, at the same resolution.
The network is that of `partita demo`, whose pools span the sample, at each size. All trainings see the
same voxels as often and take the same number of steps: where samples are eight times smaller, a batch has
eight times as many. Only errors count, so other work on the machine does not matter.

Writes records/<date>-subvolumes.md and, with all raw figures, the same name with .json.
"""

import argparse
import json
import re

import contest
import record_subvolumes_text
from contest import run_partita

MODEL = contest.ROOT / "crates" / "partita" / "src" / "demo" / "pyramid.model"
# Voxels per side in the file.
MODEL_SIZE = 32
# Part of the universes, for validation.
VALIDATION = 0.2

RUN_FILE = """model = "pyramid.model"
data = "universes"
output = "out"
overwrite = true
ranks = 1
strategy = "data=1"
batch = {batch}
epochs = {epochs}
seed = {seed}
transform = "standardize"
freeze = ["smooth*", "coarse*", "power_shape*", "excess_shape*"]
{augmentation}
[optimizer]
kind = "adam"

[schedule]
kind = "cosine"
learning_rate = 2e-2
"""

CROPS = """
[augmentation]
crop = [{size}, {size}, {size}]
crop_positions = "grid"
validation_crops = "grid"
"""


def model_text(size):
    """The network for samples of so many voxels a side."""

    def spanning(pool):
        extent = int(pool[2]) * size // MODEL_SIZE
        return f"{pool[1]} kernel={extent} stride={extent}"

    text = re.sub(r"(l2_pool \S+) kernel=(\d+) stride=\2", spanning, MODEL.read_text())
    return text.replace(extents(MODEL_SIZE), extents(size))


def extents(size):
    return f"extent={size}x{size}x{size}"


def train(options, folder, size, seed):
    """Mean absolute errors of the targets on the validation universes, after each epoch."""
    whole = size == options.grid
    run = RUN_FILE.format(
        batch=options.batch * (options.grid // size) ** 3,
        epochs=options.epochs,
        seed=seed,
        augmentation="" if whole else CROPS.format(size=size),
    )
    (folder / "pyramid.model").write_text(model_text(size))
    (folder / "run.toml").write_text(run)
    run_partita(options, folder, ["train", "run.toml", "--no-prediction"])
    result = json.loads((folder / "out" / "result.json").read_text())
    validations = [epoch["validation"] for epoch in result["epochs"]]
    errors = {error["target"]: error["mean_absolute"] for error in validations[-1]["errors"]}
    contest.say(f"{size}^3, seed {seed}: " + ", ".join(f"{k} {v:.4f}" for k, v in errors.items()))
    losses = [validation["loss"] for validation in validations]
    return {"size": size, "seed": seed, "errors": errors, "validation_losses": losses, "steps": result["steps"]}


def record(options, folder):
    words = ["--grid", options.grid, "--sizes", *options.sizes, "--universes", options.universes]
    words += ["--batch", options.batch, "--epochs", options.epochs, "--seeds", options.seeds]
    head = contest.head(options, folder, "record_subvolumes.py", words)
    making = ["cosmology", "--grid", options.grid, "--universes", options.universes, "--seed", 2026]
    making += ["--validation", VALIDATION, "--test", 0, "--out", "universes"]
    run_partita(options, folder, ["data", *map(str, making)])
    seeds = range(1, options.seeds + 1)
    trainings = [train(options, folder, size, seed) for seed in seeds for size in options.sizes]
    kept = ("grid", "universes", "batch", "epochs", "seeds")
    facts = {key: getattr(options, key) for key in kept} | {"validation": VALIDATION}
    return head | facts | {"finished": contest.now(), "trainings": trainings}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--grid", type=contest.whole, default=128, help="voxels a side of a universe")
    parser.add_argument("--sizes", type=contest.whole, nargs="+", default=[32, 64, 128])
    parser.add_argument("--universes", type=contest.whole, default=320)
    parser.add_argument("--batch", type=contest.whole, default=8, help="whole universes of a step")
    parser.add_argument("--epochs", type=contest.whole, default=20)
    parser.add_argument("--seeds", type=contest.whole, default=3)
    contest.take(parser, "subvolumes", record, record_subvolumes_text.write)


if __name__ == "__main__":
    main()
