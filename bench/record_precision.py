"""Records trainings in bf16 beside trainings in f32: losses of every epoch, memory and seconds a step.

CosmoFlow 64 on synthetic universes and ResNet-50 on synthetic images, each from several seeds in both precisions.
How far two seeds are apart says which difference between precisions would mean anything. Seconds count only on
a machine that does nothing else.

Writes records/<date>-precision.md and, with all raw figures, the same name with .json.
"""

import argparse
import json

import contest
import record_precision_text
from contest import run_partita

PRECISIONS = ("f32", "bf16")

RUN_FILE = """model = "{model}"
data = "{data}"
output = "out"
overwrite = true
ranks = 1
threads = 2
strategy = "data=1"
batch = {batch}
epochs = {epochs}
seed = {seed}
precision = "{precision}"
transform = {transform}

[optimizer]
kind = "{optimizer}"

[schedule]
kind = "cosine"
learning_rate = {learning_rate}
"""


def networks(options):
    """Network, maker of its data, and the settings of its run file."""
    universes = ["cosmology", "--grid", 64, "--universes", options.universes, "--validation", 0.2]
    images = ["shapes", "--size", 64, "--images", options.images, "--classes", 10, "--validation", 0.2]
    return [
        {
            "model": "cosmoflow@64",
            "maker": universes,
            "batch": 4,
            "transform": '"log1p"',
            "optimizer": "adam",
            "learning_rate": "1e-3",
        },
        {
            "model": "resnet50@64",
            "maker": images,
            "batch": 16,
            "transform": "{scale = 0.01}",
            "optimizer": "sgd",
            "learning_rate": "5e-3",
        },
    ]


def train(options, folder, network, seed, precision):
    """Losses of each epoch, memory and seconds of a step of one training."""
    keys = ("model", "batch", "transform", "optimizer", "learning_rate")
    settings = {key: network[key] for key in keys}
    run = RUN_FILE.format(
        **settings,
        data=f"data-{network['model']}",
        epochs=options.epochs,
        seed=seed,
        precision=precision,
    )
    (folder / "run.toml").write_text(run)
    run_partita(options, folder, ["train", "run.toml", "--no-prediction"])
    result = json.loads((folder / "out" / "result.json").read_text())
    epochs = result["epochs"]
    validation = [epoch["validation"]["loss"] for epoch in epochs]
    contest.say(f"{network['model']} in {precision}, seed {seed}: {validation[-1]:.4f}")
    return {
        "model": network["model"],
        "seed": seed,
        "precision": precision,
        "training_losses": [epoch["training_loss"] for epoch in epochs],
        "validation_losses": validation,
        "step_seconds": result["step_seconds_median"],
        "memory_bytes": result["memory"]["predicted_bytes"],
    }


def record(options, folder):
    words = ["--universes", options.universes, "--images", options.images]
    words += ["--epochs", options.epochs, "--seeds", options.seeds]
    head = contest.head(options, folder, "record_precision.py", words)
    trainings = []
    for network in networks(options):
        making = [*network["maker"], "--seed", 2026, "--test", 0, "--out", f"data-{network['model']}"]
        run_partita(options, folder, ["data", *map(str, making)])
        for seed in range(1, options.seeds + 1):
            for precision in PRECISIONS:
                trainings.append(train(options, folder, network, seed, precision))
    kept = {key: getattr(options, key) for key in ("universes", "images", "epochs", "seeds")}
    return head | kept | {"finished": contest.now(), "trainings": trainings}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--universes", type=contest.whole, default=80)
    parser.add_argument("--images", type=contest.whole, default=800)
    parser.add_argument("--epochs", type=contest.whole, default=8)
    parser.add_argument("--seeds", type=contest.whole, default=3)
    contest.take(parser, "precision", record, record_precision_text.write)


if __name__ == "__main__":
    main()
