"""Records the time to the Dice of ScaFFold's benchmark at a small scale, under several splits, beside its prediction.

The trainings take turns of an epoch: each resumes from its checkpoint until it reaches the target or the time is up. The
first losses are compared twice: those of the trainings, and in f64 those of the same network with fewer filters on volumes
of half the side, as only plain loops compute in f64.
"""

import contextlib
import json
import re
import time
from statistics import median

from page import digits, disturbance, head, of, percent, spread, table, times
from runner import Bench, Failure, Record, number, say, started, turn, watched
from trainings import LAYOUTS, Served, has, model_text, peer, toml

# Ranks and threads of each.
STRATEGIES = {"data=1": (1, 2), "depth=2": (2, 1), "height=2,width=2": (4, 1)}
TARGET = "sample_dice"
# In how many of the first turns PyTorch takes part, and its steps in each.
PEER_TURNS, PEER_STEPS = 3, 4
# Flops of a training step over those of the pass forward.
FORWARD = 3


def settings(bench: Bench, strategy: str, model: str, data: str, epochs: int, loss: str, **more) -> dict:
    """Those of a run file, after the benchmark's own."""
    ranks, threads = STRATEGIES[strategy]
    base = {"model": model, "data": data, "output": f"out-{model}-{strategy}", "loss": loss, "batch": 1, "epochs": epochs}
    base |= {"seed": 1, "ranks": ranks, "threads": threads, "strategy": strategy, "transform": {"scale": 0.001}}
    base |= {"metrics": ["jsonl"], "target": {TARGET: bench.options.dice / 100}, "optimizer": {"kind": "adam", "clip": 1.0}}
    cosine = {"kind": "cosine_restarts", "learning_rate": 1e-3, "final_factor": 0.1, "period": 10, "multiplier": 2}
    return base | {"schedule": cosine, "checkpoint": {"every_epochs": 1, "keep": 1}} | more


def train(bench: Bench, run: dict, *words: str) -> dict:
    (bench.folder / "run.toml").write_text(toml(run))
    bench.run("train", "run.toml", *words)
    return json.loads((bench.folder / run["output"] / "result.json").read_text())


def first_losses(bench: Bench, run: dict) -> list[float]:
    lines = map(json.loads, (bench.folder / run["output"] / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"][: bench.options.losses]


def loss_of(bench: Bench, data: str) -> tuple[str, float]:
    """The loss, whose cross-entropy weighs all foreground by its frequency, and that weight; the background has 1."""
    splits = bench.json("data", "inspect", data, "--all")["splits"]
    counts = next(split["classes"]["counts"] for split in splits if split["split"] == "train")
    background, *others = counts
    weight = float(f"{background / sum(others):.4g}")
    weights = ",".join(["1", *(f"{weight:g}" for _ in others)])
    dice = ",".join("1" for _ in counts)
    text = f"dice_cross_entropy background=false smooth=1e-6 cross_entropy_weights={weights} dice_weights={dice}"
    return text, weight


def exact_losses(bench: Bench, model: str, loss: str) -> dict[str, list[float]]:
    """The first losses in f64 under each strategy, of the network with fewer filters on smaller volumes."""
    steps, fewer = bench.options.losses, bench.options.fewer
    # So many of the volumes are for training.
    making = ["--scale", bench.options.scale - 1, "--volumes", steps + 2, "--validation", 2 / (steps + 2), "--out", "few"]
    bench.run("data", "fractals", *making)
    text = bench.run("inspect", model, "--text")
    head_of = re.compile(r"^head = .*$", re.MULTILINE)
    narrow = re.sub(r"filters=(\d+)", lambda found: f"filters={max(1, int(found[1]) // fewer)}", text)
    narrow = head_of.sub(head_of.search(text)[0], narrow)
    side = 2**bench.options.scale
    narrow = narrow.replace("x".join([str(side)] * 3), "x".join([str(side // 2)] * 3))
    (bench.folder / "narrow.model").write_text(narrow)
    found = {}
    for strategy in STRATEGIES:
        run = settings(bench, strategy, "narrow.model", "few", 1, loss, kernels="reference", precision="f64")
        train(bench, run, "--no-prediction")
        found[strategy] = first_losses(bench, run)
        say(f"f64, {strategy}: {found[strategy]}")
    return found


class Epochs:
    """A training that does an epoch in each turn."""

    program, batch = "Partita", 1

    def __init__(self, bench: Bench, model: str, strategy: str, loss: str) -> None:
        self.bench, self.model, self.strategy, self.loss = bench, model, strategy, loss
        ranks, threads = STRATEGIES[strategy]
        self.name, self.cores = strategy, 2
        self.facts = {"ranks": ranks, "threads": threads}
        self.epochs, self.turns, self.result = 0, [], {}

    @property
    def is_done(self) -> bool:
        return self.reached is not None or self.epochs >= self.bench.options.epochs

    @property
    def reached(self) -> int | None:
        return self.result.get("target", {}).get("epoch")

    def run(self) -> dict:
        return settings(self.bench, self.strategy, self.model, "fractals", self.epochs, self.loss)

    def turn(self) -> dict:
        self.epochs += 1
        run, is_first = self.run(), self.epochs == 1
        # Kernels are measured, and the step is predicted, before the first one.
        more = ["--prediction", "--budget", f"{self.bench.options.budget}s"] if is_first else ["--no-prediction", "--resume"]
        self.result = train(self.bench, run, *more)
        if is_first:
            prediction = json.loads((self.bench.folder / run["output"] / "prediction.json").read_text())
            self.facts |= {"predicted": prediction["iteration_seconds"], "prediction_basis": prediction["basis"]}
        last = self.result["epochs"][-1]
        dice = last["validation"]["classification"][TARGET]
        say(f"{self.strategy}, epoch {self.epochs}: {TARGET} {dice:.4f}")
        steps = {"step_seconds": self.result["step_seconds_median"], "epoch": last["epoch"], TARGET: dice}
        return steps | {"seconds": last["seconds"], "validation_seconds": last["validation"]["seconds"]}

    def entry(self) -> dict:
        kept = {key: getattr(self, key) for key in ("program", "name", "batch", "cores", "facts", "reached", "turns")}
        kept["target"] = self.result["target"]
        return kept | {"first_losses": first_losses(self.bench, self.run())}


def peers(bench: Bench, model: str):
    if has("torch"):
        text = model_text(bench, model)
        for layout in LAYOUTS:
            command = peer("peer_torch.py", text, "--batch", 1, "--threads", 2, "--layout", layout)
            yield Served(f"PyTorch, {layout}", command, 2, steps=PEER_STEPS)


def measure(bench: Bench) -> dict:
    options = bench.options
    model = f"scaffold@{2 ** options.scale}"
    start = time.monotonic()
    bench.run("data", "fractals", "--scale", options.scale, "--volumes", options.volumes, "--out", "fractals")
    made = time.monotonic() - start
    loss, weight = loss_of(bench, "fractals")
    exact = exact_losses(bench, model, loss)
    with contextlib.ExitStack() as stack:
        others = [(one, []) for one in started(stack, peers(bench, model))]
        trainings = [Epochs(bench, model, strategy, loss) for strategy in STRATEGIES]
        start = time.monotonic()
        while any(not one.is_done for one in trainings) and time.monotonic() - start < 60 * options.minutes:
            for one in trainings:
                if not one.is_done:
                    one.turns.append(watched([], one.turn))
            for other, turns in others:
                if len(turns) < PEER_TURNS:
                    turns.append(turn(other, model))
        found = [one.entry() for one in trainings] + [other.entry(turns) for other, turns in others]
    if not all(one.turns for one in trainings):
        raise Failure("no epoch was done in the time; --minutes gives more")
    kept = {key: getattr(options, key) for key in ("scale", "volumes", "dice", "minutes", "budget", "losses", "fewer")}
    samples = bench.json("data", "inspect", "fractals")["splits"]
    counts = {split["split"]: split["samples"] for split in samples}
    kept |= {"model": model, "dataset_seconds": made, "samples": counts, "loss": loss, "foreground_weight": weight}
    return kept | {"exact_losses": exact, "contenders": found}


def farthest(some: list[float], others: list[float]) -> str:
    return f"{max(abs(a / b - 1) for a, b in zip(some, others)):.1e}"


def page(record: dict, raw: str):
    entries = of("Partita", record["contenders"])
    version = next((one["facts"]["version"] for one in of("PyTorch", record["contenders"])), None)
    counts, target = record["samples"], record["dice"] / 100
    yield head(record, "Time to ScaFFold's target at a small scale", f"""\
`{record['model']}` on {counts['train']} volumes of fractals to train on and {counts['validation']} to validate,\
 batch 1, f32, untuned, as
[docs/src/scaffold.md](../docs/src/scaffold.md) says: to a validation Dice of {target} (`{TARGET}`), or as far as\
 {record['minutes']} minutes
of all trainings together go. They take turns of an epoch. Raw data: `{raw}`.""",
               f"PyTorch {version}" if version else "without PyTorch",
               [f"Data: made in {record['dataset_seconds']:.1f} s", f"Loss: `{record['loss']}`"])
    yield disturbance(record)
    first, *rest = record["exact_losses"].items()
    yield f"""\
## The same losses

The first {record['losses']} losses in f64 by plain loops, of the network with a {record['fewer']}th of its filters\
 and volumes of half the side,
and those of the trainings in f32, whose convolutions each strategy computes by other algorithms; farthest relative distance from\
 those of `{first[0]}`.

""" + table("strategy | f64, fewer filters> | f32>", (
        [f"`{name}`", farthest(losses, first[1]), farthest(one["first_losses"], entries[0]["first_losses"])]
        for (name, losses), one in zip(rest, entries[1:])
    ))
    yield "## Epochs to the target\n\n" + table(
        "strategy | ranks x threads | epochs> | Dice after each epoch",
        ([f"`{one['name']}`", f"{one['facts']['ranks']} x {one['facts']['threads']}", one["reached"] or "not reached",
          ", ".join(f"{turn[TARGET]:.3f}" for turn in one["turns"])] for one in entries),
    )
    yield f"""\
## Predicted and measured

Predicted before the first step, from kernels measured for this record in {record['budget']} s at most: a training\
 step, and the time of all
epochs that were done, each {counts['train']} training steps and {counts['validation']} validations of a third of a\
 step. Measured: the median of the epochs'
median steps, and the sum of the epochs without checkpoints and starts.

""" + table("strategy | step, predicted> | measured> | epochs, predicted> | measured> | accuracy>", (
        times_of(one, counts) for one in entries
    ))
    if version:
        yield f"""\
## Beside PyTorch

A step on two threads, without the Dice part of the loss and clipping, which PyTorch's peer lacks.

""" + table("who | seconds a step>", ([one["name"], spread(times(one), 3)] for one in record["contenders"]))


def times_of(one: dict, counts: dict) -> list:
    of_step, epochs = one["facts"]["predicted"], len(one["turns"])
    ahead = epochs * of_step * (counts["train"] + counts["validation"] / FORWARD)
    found = sum(turn["seconds"] + turn["validation_seconds"] for turn in one["turns"])
    step = digits(3)
    seconds = [step(of_step), step(median(times(one))), f"{ahead:.0f} s", f"{found:.0f} s"]
    return [f"`{one['name']}`", *seconds, percent(1 - abs(ahead - found) / found)]


OPTIONS = {
    "--scale": number(5, "volumes of 2^scale voxels a side"),
    "--volumes": number(241),
    "--dice": number(95, "target in percent"),
    "--epochs": number(30, "epochs of a training at most"),
    "--minutes": number(25, "after which no training begins another epoch"),
    "--budget": number(60, "seconds in which the kernels of a training are measured for its prediction"),
    "--losses": number(10, "first losses that are compared"),
    "--fewer": number(8, "divisor of the filters of the network in f64"),
}

if __name__ == "__main__":
    Record("scaffold", measure, page, OPTIONS).take()
