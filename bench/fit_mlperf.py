"""Fits two numbers to rows with use = "fit" of the tables of MLPerf; fit.py has the options.

- kernels.batch_norm of software/mxnet.toml, to published/mlperf-training-resnet50.toml;
- the f16 shares of 3D convolutions of machines/dgx-a100.toml, one for all passes, to the rows of
  published/mlperf-hpc-cosmoflow.toml on dgx-a100 with pytorch-ddp.

Each is the number at which the mean of ln(predicted / published) over the rows is 0, by bisection.
"""

import math
from functools import partial
from statistics import mean

from fit import Fit, Numbers, Place, fit, milliseconds, root, rows_of

PASSES, SHARES = ("forward", "backward_data", "backward_weight"), "device.efficiency.f16.conv3d"
PLACES = {
    "batch_norm": [Place("software/mxnet.toml", "kernels", "batch_norm", digits=4)],
    "share": [Place("machines/dgx-a100.toml", SHARES, one, digits=4) for one in PASSES],
}
KEYS = ("model", "machine", "software", "precision", "optimizer")
RESNET, COSMOFLOW = ([row for row in rows_of(name, keys=KEYS) if row["use"] == "fit"] for name in (
    "mlperf-training-resnet50", "mlperf-hpc-cosmoflow"
))
ROWS = {
    "batch_norm": [row for row in RESNET if row["software"] == "mxnet"],
    "share": [row for row in COSMOFLOW if (row["machine"], row["software"]) == ("dgx-a100", "pytorch-ddp")],
}
# Whether times rise with the number, and its range.
RANGES = {"batch_norm": (1, 0.0, 2.0), "share": (-1, 0.02, 1.0)}


def stage_of(name: str, own: Fit, numbers: Numbers) -> Numbers:
    sign, low, high = RANGES[name]

    def error(number: float) -> float:
        steps = own.predict({name: number}, ROWS[name])
        return sign * mean(math.log(step / milliseconds(row)) for row, (step, _) in zip(ROWS[name], steps))

    return {name: root(error, low, high)}


if __name__ == "__main__":
    fit(PLACES, [*ROWS["batch_norm"], *ROWS["share"]], [(name, partial(stage_of, name)) for name in PLACES])
