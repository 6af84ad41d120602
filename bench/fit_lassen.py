"""Fits numbers of machines/lassen.toml and software/lbann.toml to published rows; fit.py has the options.

Read: rows with use = "fit" of published/cosmoflow-512-strong.toml (4 samples on 32 to 512 devices) and, for the rates
of convolutions only, of published/unet3d-256-strong.toml (256 devices), and for batch norms of
published/cosmoflow-512-bn-weak.toml (32 devices). Each stage fits few numbers to few published parts of these times:

    normalization   batch_norm: what a step with batch norms takes more than the same without
    compute         forward, backward, channels_forward, channels_backward, thickness
    exchange        latency, bandwidth
    redistribution  backward: what it takes in both passes, and what the wait for halos grows by from 256 to 512
                    devices, where the backward pass waits for it
    allreduce       growth: backward waits as a whole, since a wait that an exchange and a sum in flight share may be
                    booked under either
"""

import math
from functools import partial

from fit import Fit, Numbers, Place, fit, milliseconds, rows_of, simplex

STRONG, UNET, NORM = "cosmoflow-512-strong", "unet3d-256-strong", "cosmoflow-512-bn-weak"
MACHINE, SOFTWARE = "machines/lassen.toml", "software/lbann.toml"
CONV3D = "device.efficiency.conv3d"
PLACES = {
    "forward": [Place(MACHINE, f"{CONV3D}.forward")],
    "backward": [Place(MACHINE, f"{CONV3D}.backward_data"), Place(MACHINE, f"{CONV3D}.backward_weight")],
    "channels_forward": [Place(MACHINE, f"{CONV3D}.saturation.channels_forward")],
    "channels_backward": [Place(MACHINE, f"{CONV3D}.saturation.channels_backward")],
    "thickness": [Place(MACHINE, f"{CONV3D}.saturation.thickness")],
    "batch_norm": [Place(SOFTWARE, "kernels", "batch_norm")],
    "latency": [Place(SOFTWARE, f"exchange.{link}", "latency", "us") for link in ("intra", "inter")],
    "bandwidth": [Place(SOFTWARE, f"exchange.{link}", "bandwidth", "GB/s") for link in ("intra", "inter")],
    "backward_redistribution": [Place(SOFTWARE, "redistribution", "backward")],
    "growth": [Place(SOFTWARE, "allreduce.fit", "growth")],
}
# What the files accept.
MOST = {"forward": 4, "backward": 4, "growth": 1}
# Numbers of each stage, from where the search starts.
STAGES = {
    "normalization": {"batch_norm": 4},
    "compute": {"forward": 0.8, "backward": 1.2, "channels_forward": 17, "channels_backward": 100, "thickness": 1},
    "exchange": {"latency": 300, "bandwidth": 2.5},
    "redistribution": {"backward_redistribution": 0.9},
    "allreduce": {"growth": 0.4},
}
ROWS = rows_of(STRONG, UNET, NORM)


def fitting(*tables: str) -> list[dict]:
    return [row for row in ROWS if row["use"] == "fit" and row["table"] in tables]


def pairs(stage: str, ranks: int, ours: dict, theirs: dict) -> list[tuple[float, float]]:
    """Predicted and published milliseconds of a row that a stage compares."""
    names = {"compute": ["forward_compute", "backward_compute"], "exchange": ["forward_exchange", "backward_exchange"]}
    if stage in names:
        # On 512 devices halos of the backward pass wait for the redistribution.
        fit_to = names[stage][: 1 if stage == "exchange" and ranks == 512 else 2]
        return [(ours[name], theirs[name]) for name in fit_to]
    if stage == "redistribution" and ranks == 512:
        before = next(row["parts"] for row in fitting(STRONG) if row["ranks"] == 256)
        moved = theirs["forward_redistribution"] + theirs["backward_redistribution"]
        return [(ours["redistribution"], moved + theirs["backward_exchange"] - before["backward_exchange"])]
    if stage == "allreduce" and ranks < 512:
        waits = ("backward_exchange", "gradient_allreduce_exposed")
        return [tuple(sum(parts[name] for name in waits) for parts in (ours, theirs))]
    return []


def misfit(own: Fit, stage: str, numbers: Numbers) -> float:
    """Mean square of relative errors of what the stage fits."""
    if any(numbers.get(name, 0) > most for name, most in MOST.items()):
        return math.inf
    found: list[tuple[float, float]] = []
    if stage == "normalization":
        rows, plain = fitting(NORM), {row["ranks"]: row for row in fitting(STRONG)}
        without = [plain[row["ranks"]] for row in rows]
        steps = zip(own.predict(numbers, rows), own.predict(numbers, without))
        ours = [with_norm - without_norm for (with_norm, _), (without_norm, _) in steps]
        found = list(zip(ours, (milliseconds(a) - milliseconds(b) for a, b in zip(rows, without))))
    else:
        rows = fitting(STRONG, UNET) if stage == "compute" else fitting(STRONG)
        for row, (_, parts) in zip(rows, own.predict(numbers, rows)):
            found += pairs(stage, row["ranks"], parts, row["parts"])
    return sum((a / b - 1) ** 2 for a, b in found) / len(found)


def stage_of(name: str, own: Fit, numbers: Numbers) -> Numbers:
    return simplex(lambda point: misfit(own, name, numbers | point), STAGES[name])


if __name__ == "__main__":
    fit(PLACES, ROWS, [(name, partial(stage_of, name)) for name in STAGES])
