"""Fits software/partita-opencl.toml to a record of steps on a GPU; fit.py has the options.

Read: steps of one rank in f32 of records/2026-11-26-gpu-h200.json. Each network fixes one number, in turns: CosmoFlow
the launch of a kernel, 3D U-Net the rate of 3D convolutions, ResNet-50 that of 2D convolutions. The steps in f16 are
printed beside what is predicted for them, and never fitted to.
"""

import json
from functools import partial
from statistics import median

from fit import ROOT, Fit, Numbers, Place, fit, root

RECORD = ROOT / "records/2026-11-26-gpu-h200.json"
PROFILE = "software/partita-opencl.toml"
PLACES = {
    "start": [Place(PROFILE, "kernels.gpu", "start", "us", 2)],
    "conv3d": [Place(PROFILE, "kernels.gpu", "conv3d")],
    "conv2d": [Place(PROFILE, "kernels.gpu", "conv2d")],
}
STARTS = {"start": 20.0, "conv3d": 0.14, "conv2d": 0.06}
NETWORKS = {"start": "cosmoflow@32", "conv3d": "unet3d@32", "conv2d": "resnet50@64"}


def rows() -> list[dict]:
    """Steps of one rank on the device, as rows of a table: medians of the turns."""
    found = []
    for network in json.loads(RECORD.read_text())["networks"]:
        for one in network["contenders"]:
            facts = one["facts"]
            if facts["device"] == "gpu" and facts["strategy"] == "data=1":
                row = {"model": network["model"], "machine": "dgx-h200", "software": "partita-opencl", "ranks": 1}
                row |= {"batch": one["batch"], "strategy": "data=1", "precision": facts["precision"]}
                row["use"] = "fit" if facts["precision"] == "f32" else "predict"
                found.append(row | {"milliseconds": 1e3 * median(turn["step_seconds"] for turn in one["turns"])})
    return found


def stage_of(name: str, own: Fit, numbers: Numbers) -> Numbers:
    row = next(row for row in rows() if row["use"] == "fit" and row["model"] == NETWORKS[name])
    before = STARTS | numbers
    # A higher rate takes less time, a longer launch more.
    sign = 1 if name == "start" else -1

    def error(number: float) -> float:
        return sign * (own.predict(before | {name: number}, [row])[0][0] - row["milliseconds"])

    return {name: root(error, before[name] / 4, before[name] * 4)}


if __name__ == "__main__":
    fit(PLACES, rows(), 3 * [(name, partial(stage_of, name)) for name in PLACES])
