"""Records how the error of predicted parameters falls with the size of a sample.

The same universes are samples as a whole and as the sub-volumes that cover them, at the same resolution. All trainings
see the same voxels as often and take the same number of steps: where samples are eight times smaller, a batch has eight
times as many. Only errors count, so other work on the machine does not matter.
"""

import re
from statistics import mean

from page import head, spread, table
from runner import ROOT, Bench, Record, number, numbers, say
from trainings import settings_of, trained

MODEL = ROOT / "crates" / "partita" / "src" / "demo" / "pyramid.model"
# Voxels per side in the file.
MODEL_SIZE = 32
# Part of the universes, for validation.
VALIDATION = 0.2
FROZEN = ["smooth*", "coarse*", "power_shape*", "excess_shape*"]


def model_text(size: int) -> str:
    """The network of `partita demo`, whose pools span the sample, for samples of so many voxels a side."""

    def spanning(pool: re.Match) -> str:
        extent = int(pool[2]) * size // MODEL_SIZE
        return f"{pool[1]} kernel={extent} stride={extent}"

    text = re.sub(r"(l2_pool \S+) kernel=(\d+) stride=\2", spanning, MODEL.read_text())
    return text.replace("extent=" + "x".join([str(MODEL_SIZE)] * 3), "extent=" + "x".join([str(size)] * 3))


def train(bench: Bench, size: int, seed: int) -> dict:
    """Mean absolute errors of the targets on the validation universes, and the losses after each epoch."""
    options = bench.options
    (bench.folder / "pyramid.model").write_text(model_text(size))
    batch = options.batch * (options.grid // size) ** 3
    more = {"seed": seed, "transform": "standardize", "freeze": FROZEN}
    if size != options.grid:
        more["augmentation"] = {"crop": [size] * 3, "crop_positions": "grid", "validation_crops": "grid"}
    run = settings_of("pyramid.model", "universes", batch, options.epochs, schedule="cosine", rate=2e-2, **more)
    result = trained(bench, run, "--no-prediction")
    validations = [epoch["validation"] for epoch in result["epochs"]]
    errors = {error["target"]: error["mean_absolute"] for error in validations[-1]["errors"]}
    say(f"{size}^3, seed {seed}: " + ", ".join(f"{key} {value:.4f}" for key, value in errors.items()))
    losses = [validation["loss"] for validation in validations]
    return {"size": size, "seed": seed, "errors": errors, "validation_losses": losses, "steps": result["steps"]}


def measure(bench: Bench) -> dict:
    options = bench.options
    making = ["cosmology", "--grid", options.grid, "--universes", options.universes, "--seed", 2026]
    bench.run("data", *making, "--validation", VALIDATION, "--test", 0, "--out", "universes")
    trainings = [train(bench, size, seed) for seed in range(1, options.seeds + 1) for size in options.sizes]
    kept = {key: getattr(options, key) for key in ("grid", "universes", "batch", "epochs", "seeds")}
    return kept | {"validation": VALIDATION, "trainings": trainings}


def page(record: dict, raw: str):
    held = round(record["universes"] * record["validation"])
    yield head(record, "Errors against the size of samples", f"""\
{record['universes'] - held} universes of {record['grid']}^3 voxels of 12.5 Mpc/h to train on, {held} to validate,\
 as a whole and as the
sub-volumes that cover them. The network of `partita demo`, whose pools span a sample. All trainings see each voxel
{record['epochs']} times and take the same number of steps, of {record['batch']} universes. Shown are mean absolute\
 errors on the
validation samples, mean of {record['seeds']} seed(s) [least .. most]; targets lie between -1 and 1. Raw data: `{raw}`.
Behind its pools the network has one value per sample and channel, so that its batch norms take their statistics\
 from as many
values as a step has samples: with few of them, whole universes are trained on noisier ones.""")
    targets = list(record["trainings"][0]["errors"])
    rows = []
    for size in sorted({training["size"] for training in record["trainings"]}):
        errors = [training["errors"] for training in record["trainings"] if training["size"] == size]
        cells = [spread([one[target] for one in errors], 3, mean) for target in targets]
        rows.append([f"{size}^3", record["batch"] * (record["grid"] // size) ** 3, *cells])
    yield table("sample | samples a step> | " + " | ".join(f"{target}>" for target in targets), rows)


OPTIONS = {
    "--grid": number(128, "voxels a side of a universe"),
    "--sizes": numbers(32, 64, 128),
    "--universes": number(320),
    "--batch": number(8, "whole universes of a step"),
    "--epochs": number(20),
    "--seeds": number(3),
}

if __name__ == "__main__":
    Record("subvolumes", measure, page, OPTIONS).take()
