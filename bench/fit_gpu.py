"""Fits what kernels of the vendors' libraries reach on GPUs, by their shapes, to steps of one device or node: rows with
use = "fit" of published/gpu-rows.toml, kernel-rates.toml and mlperf-training-resnet50.toml; fit.py has the options.

- half_side of tiles, one number for all devices and precisions;
- a share of the peak for each device and precision, the same for all passes and numbers of dims;
- winograd, what windows of 3 x 3 in f32 save;
- what group norms take beyond their bytes, and any kernel however small, with PyTorch and with TensorFlow 2;
- what batch norms of MXNet take, in times of their bytes.

Sweeps over the numbers; each goes to where the sum of sqrt(1 + (ln(predicted / published) / 0.1)^2) is least, in which
rows of one network, device and precision together weigh as much as those of another.
--leave-out NETWORK fits without its rows and prints how well they are then predicted.
"""

import argparse
import math
import sys
from collections import Counter
from functools import partial

from fit import Fit, Numbers, Place, fit, least, milliseconds, rows_of

PASSES, SWEEPS = ("forward", "backward_data", "backward_weight"), 2
KEYS = ("model", "machine", "software", "precision", "optimizer")


def machine(name: str) -> str:
    return f"machines/{name}.toml"


def shares(name: str, precision: str) -> list[Place]:
    tables = [f"device.efficiency.{precision}conv{dims}d" for dims in (2, 3)]
    return [Place(machine(name), table, one, digits=2) for table in tables for one in PASSES]


def kernels(key: str, unit: str = "") -> list[Place]:
    return [Place(f"software/{name}.toml", "kernels", key, unit, digits=2) for name in ("pytorch-ddp", "horovod")]


DEVICES = ("dgx-1", "dgx-a100", "dgx-h100", "tesla-p40")
PLACES = {
    "half_side": [Place(machine(name), "device.tiles", "half_side", digits=2) for name in DEVICES],
    "V100 f32": shares("dgx-1", ""),
    "V100 f16": shares("dgx-1", "f16."),
    "A100 tf32": shares("dgx-a100", "tf32."),
    "A100 f16": shares("dgx-a100", "f16."),
    "H100 f16": shares("dgx-h100", "f16."),
    "P40 f32": shares("tesla-p40", ""),
    "winograd": [Place(machine(name), "device.efficiency", "winograd", digits=2) for name in ("dgx-1", "tesla-p40")],
    "group_norm": kernels("group_norm"),
    "start": kernels("start", "us"),
    "batch_norm": [Place("software/mxnet.toml", "kernels", "batch_norm", digits=2)],
}
# Where to look, around what stands in the files.
RANGES = {
    "half_side": (20, 300), "winograd": (1, 4), "group_norm": (1, 6), "start": (3, 60), "batch_norm": (0.2, 2),
    "V100 f32": (0.3, 0.95), "V100 f16": (0.2, 0.95), "A100 tf32": (0.2, 0.95), "A100 f16": (0.2, 0.95),
    "H100 f16": (0.2, 0.95), "P40 f32": (0.3, 0.95),
}
# Rows that alone tell a number, by machine and precision.
OF = {
    "V100 f32": ("dgx-1", "f32"), "V100 f16": ("dgx-1", "f16"), "A100 tf32": ("dgx-a100", "tf32"),
    "A100 f16": ("dgx-a100", "f16"), "H100 f16": ("dgx-h100", "f16"), "P40 f32": ("tesla-p40", "f32"),
}
TABLES = ("gpu-rows", "kernel-rates", "mlperf-training-resnet50")
ALL = [row for row in rows_of(*TABLES, keys=KEYS) if row["use"] == "fit"]


def kind(row: dict) -> tuple:
    return row["model"], row["machine"], row["precision"], row["software"]


def rows_for(name: str, rows: list[dict]) -> list[dict]:
    if name in OF:
        return [row for row in rows if (row["machine"], row["precision"]) == OF[name]]
    if name == "winograd":
        return [row for row in rows if row["precision"] == "f32"]
    if name in ("group_norm", "start"):
        return [row for row in rows if row["software"] in ("pytorch-ddp", "horovod")]
    if name == "batch_norm":
        return [row for row in rows if row["software"] == "mxnet" and row["model"].startswith("resnet")]
    return rows


def stage_of(name: str, rows: list[dict], own: Fit, numbers: Numbers) -> Numbers:
    weights, asked = Counter(map(kind, rows)), rows_for(name, rows)
    if not asked:
        return {}

    def misfit(logarithm: float) -> float:
        steps = own.predict(numbers | {name: math.exp(logarithm)}, asked)
        errors = [math.log(step / milliseconds(row)) for row, (step, _) in zip(asked, steps)]
        return sum(math.hypot(1, error / 0.1) / weights[kind(row)] for row, error in zip(asked, errors))

    low, high = map(math.log, RANGES[name])
    return {name: math.exp(least(misfit, low, high, rounds=9))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--leave-out")
    options, sys.argv[1:] = parser.parse_known_args()
    left = [row for row in ALL if options.leave_out and options.leave_out in row["model"]]
    rows = [row for row in ALL if row not in left]
    # Shares first, as they explain most.
    order = [*OF, "winograd", "half_side", "group_norm", "start", "batch_norm"]
    fit(PLACES, left or ALL, [(name, partial(stage_of, name, rows)) for name in order * SWEEPS])
