"""Fits numbers of software/chainermn.toml to published rows; fit.py has the options.

Read: rows with use = "fit" of published/resnet50-abci.toml, and the computation of such rows of
published/resnet50-abci-epochs.toml. Each stage fits one number to few published times:

    channel, space    computation of rows that say it
    growth            steps under `data` alone
    latency           steps under `data` and `height`
    filter, backward  in turns: steps under `filter`, `channel`, `data` and `filter`
"""

import math
from functools import partial

from fit import Fit, Numbers, Place, fit, least, milliseconds, rows_of

PROFILE = "software/chainermn.toml"
PLACES = {
    "channel": [Place(PROFILE, "kernels.split", "channel")],
    "space": [Place(PROFILE, "kernels.split", "space")],
    "growth": [Place(PROFILE, "allreduce.fit", "growth")],
    "latency": [Place(PROFILE, "exchange.intra", "latency", "ms")],
    "filter": [Place(PROFILE, "kernels.split", "filter")],
    "backward": [Place(PROFILE, "redistribution", "backward")],
}
RANGES = {
    "channel": (0.3, 1.3), "space": (0.0, 1.0), "growth": (0.05, 0.9), "latency": (0.5, 8.0), "filter": (0.3, 1.3),
    "backward": (0.0, 4.0),
}
ROWS = rows_of("resnet50-abci", "resnet50-abci-epochs", "resnet50-abci-logs", "vgg16-abci", "cosmoflow-abci")
COMPUTATION = ("forward_compute", "backward_compute", "update")


def is_fitted(name: str, row: dict) -> bool:
    split = {word.split("=")[0] for word in row["strategy"].split(";")[0].split(",")}
    if name in ("channel", "space"):
        return "computation" in row.get("parts", {}) and ("height" if name == "space" else name) in split
    wanted = {
        "growth": split == {"data"},
        "latency": "height" in split,
        "filter": "filter" in split,
        "backward": bool(split & {"filter", "channel"}),
    }
    return row["table"] == "resnet50-abci" and wanted[name]


def misfit(own: Fit, name: str, numbers: Numbers) -> float:
    """Mean square of the logarithms of predicted by published times."""
    rows = [row for row in ROWS if row["use"] == "fit" and is_fitted(name, row)]
    total = 0.0
    for row, (step, parts) in zip(rows, own.predict(numbers, rows)):
        ours, theirs = step, milliseconds(row)
        if name in ("channel", "space"):
            ours, theirs = sum(parts[part] for part in COMPUTATION), row["parts"]["computation"]
        total += math.log(ours / theirs) ** 2
    return total / len(rows)


def stage_of(name: str, own: Fit, numbers: Numbers) -> Numbers:
    return {name: least(lambda number: misfit(own, name, numbers | {name: number}), *RANGES[name])}


if __name__ == "__main__":
    # The last two depend on each other.
    names = [*PLACES, *list(PLACES)[-2:]]
    fit(PLACES, ROWS, [(name, partial(stage_of, name)) for name in names])
