"""Records what implementations chosen without measuring cost beside the best, and beside plain kernels.

For each network and instruction level `partita tune` measures all undivided implementations of every pass of its
convolutions. Of all networks together as many convolutions are drawn as `--convolutions` says, and for each the
measured time of what the model would choose is compared with that of the fastest implementation. Then `partita train`
runs from an empty cache, without trials and after them, from the tuned one, and with `workspace=off`.
"""

import random
import shutil
import time
from collections import Counter
from pathlib import Path

from page import disturbance, head, percent, quoted, spread, step_seconds, table, times
from runner import LEVELS, Bench, Record, numbers, number, race, say, some
from trainings import Scene, Training, cosmology, figures_with_memory, segmentation, shapes

# Scene, batch, and how many steps are timed at most.
MATCHES = (
    (cosmology(32), 2, 20),
    (segmentation(32, 3), 1, 2),
    (shapes("resnet50@64", 24), 4, 20),
    (shapes("alexnet@224", 48), 2, 10),
    (shapes("vgg16@224", 16), 1, 2),
)
MODELS = [scene.model for scene, *_ in MATCHES]
# What the choice may cost over the best.
AIM = 0.05


def tuned(bench: Bench, level: str, threads: int, model: str, batch: int) -> list[dict]:
    """The convolutions of a network with the times of their implementations; the usual one is the first."""
    words = ["tune", model, "--ranks", 1, "--batch", batch, "--threads", threads, "--policy", "undivided"]
    start = time.monotonic()
    answer = bench.json(*words, launcher=("env", f"PARTITA_VECTORS={level}"))
    say(f"{model}, batch {batch}, {level}: tuned in {time.monotonic() - start:.0f} s")
    facts = {"model": model, "batch": batch, "level": level, "threads": threads}
    several = (kernel for kernel in answer["kernels"] if len(kernel["implementations"]) > 1)
    keys = ("layer", "kernel", "extent", "implementations", "expected")
    return [facts | {key: kernel[key] for key in keys} for kernel in several]


def steps(bench: Bench, scene: Scene, batch: int, steps_max: int, level: str, threads: int) -> dict:
    """Steps by plain kernels, by what is chosen without measuring, what is tried in place, and tuned."""
    scene.make(bench)
    racers = []

    def empty(name: str) -> Bench:
        """With a cache of its own."""
        own = bench.inside(f"{name}-{scene.model}-{level}-{threads}")
        (own.folder / scene.data).symlink_to(bench.folder / scene.data)
        return own

    untuned = empty("untuned")
    contenders = (
        ("plain", untuned, "off", "off"),
        ("chosen", untuned, "live", "off"),
        ("tried", empty("tried"), "live", "always"),
        ("tuned", bench, "live", "off"),
    )
    for name, own, workspace, tuning in contenders:
        words = ["--no-prediction", "--tuning", tuning]
        how = {"threads": threads, "launcher": ("env", f"PARTITA_VECTORS={level}"), "words": words}
        how |= {"name": name, "workspace": workspace, "figures": figures_with_memory}
        strategy = f"data=1,workspace={workspace}"
        racers.append(Training(own, scene, strategy, batch, min(bench.options.steps, steps_max), **how))
    entries = race(bench, racers, f"{scene.model}, {level}")
    return {"model": scene.model, "batch": batch, "level": level, "threads": threads, "contenders": entries}


def measure(bench: Bench) -> dict:
    options, kernels, races = bench.options, [], []
    if options.cache:
        shutil.copytree(options.cache, bench.folder / "cache" / "partita")
    for scene, batch, steps_max in (match for match in MATCHES if match[0].model in options.models):
        for level in bench.levels:
            for threads in options.threads:
                kernels += tuned(bench, level, threads, scene.model, batch)
                if not options.no_steps:
                    races.append(steps(bench, scene, batch, steps_max, level, threads))
    return {"convolutions": options.convolutions, "seed": options.seed, "kernels": kernels, "races": races}


def distinct(record: dict, level: str) -> list[dict]:
    """The convolutions of a level; layers of equal kernels count once."""
    found = {}
    for kernel in (kernel for kernel in record["kernels"] if kernel["level"] == level):
        times_of = tuple((one["configuration"], one["seconds"]) for one in kernel["implementations"])
        found.setdefault((kernel["model"], kernel["kernel"], times_of), kernel)
    return list(found.values())


def drawn(record: dict, level: str) -> list[dict]:
    kernels = distinct(record, level)
    count = min(record["convolutions"], len(kernels))
    return random.Random(record["seed"]).sample(kernels, count)


def seconds(kernel: dict, name: str) -> float:
    return next(one["seconds"] for one in kernel["implementations"] if one["configuration"] == name)


def cost(kernel: dict) -> float:
    """How much more time the choice takes than the fastest."""
    fastest = min(one["seconds"] for one in kernel["implementations"])
    return seconds(kernel, kernel["expected"]) / fastest - 1


def loss(kernel: dict) -> float:
    """How much more time the choice takes than the plain kernel."""
    return seconds(kernel, kernel["expected"]) / kernel["implementations"][0]["seconds"] - 1


def summary(kernels: list[dict]) -> list[str]:
    costs = sorted(map(cost, kernels))
    fastest = sum(min(one["seconds"] for one in kernel["implementations"]) for kernel in kernels)
    chosen = sum(seconds(kernel, kernel["expected"]) for kernel in kernels)
    plain = sum(kernel["implementations"][0]["seconds"] for kernel in kernels)
    within = sum(one <= AIM for one in costs) / len(costs)
    slower = sum(loss(kernel) > AIM for kernel in kernels)
    figures = [percent(within), percent(costs[int(0.9 * (len(costs) - 1))]), percent(chosen / fastest - 1)]
    return [str(len(kernels)), *figures, f"{plain / fastest:.2f}", str(slower), percent(max(map(loss, kernels)))]


def missed(kernels: list[dict]):
    for kernel in sorted(kernels, key=cost, reverse=True):
        if cost(kernel) > AIM:
            times_of = ", ".join(
                f"{one['configuration']} {1e3 * one['seconds']:.3g}" for one in kernel["implementations"]
            )
            name = f"{kernel['model']} {kernel['layer']}"
            yield [kernel["level"], name, kernel["kernel"], quoted(kernel["expected"]), percent(cost(kernel)), times_of]


def page(record: dict, raw: str):
    levels = sorted({kernel["level"] for kernel in record["kernels"]}, reverse=True)
    yield head(record, "Implementations chosen without measuring", f"""\
Convolutions of {len({kernel['model'] for kernel in record['kernels']})} networks, all passes, on one rank (float32).\
 `partita tune --policy undivided` measured each implementation; the choice is what Partita pins where nothing was\
 measured. Of those with several implementations {record['convolutions']} are drawn for each level, or all there are (seed\
 {record['seed']}). Raw data: `{raw}`.""")
    yield disturbance(record)
    columns = "level | convolutions> | choice at most 5 % over the best> | 90 % are within> | all together over the best>"
    columns += " | plain / best> | over 5 % slower than plain> | most over plain>"
    drawings = [(level, drawn(record, level)) for level in levels]
    rows = [[level, *summary(kernels)] for level, kernels in drawings]
    rows += [
        [f"{level}, all layers", *summary([kernel for kernel in record["kernels"] if kernel["level"] == level])]
        for level in levels
    ]
    yield f"## Convolutions\n\n{table(columns, rows)}"
    yield f"""\
Of the drawn ones, those whose choice takes over 5 % longer than the best, in ms:

{table("level | layer | kernel | choice | over the best> | times", (row for _, kernels in drawings for row in missed(kernels)))}"""
    counts = Counter((kernel["level"], kernel["expected"]) for _, kernels in drawings for kernel in kernels)
    yield "Choices: " + ", ".join(f"{level} {quoted(name)} {count}" for (level, name), count in counts.most_common())
    if record["races"]:
        yield f"## Steps\n\nSeconds of a step, median [least .. most].\n\n{table(STEP_COLUMNS, map(step_row, record['races']))}"


STEP_COLUMNS = "network | batch> | level | threads> | plain> | chosen> | tried in place> | tuned> | plain / chosen>"
STEP_COLUMNS += " | tuned / chosen> | tuned / tried>"


def step_row(entry: dict) -> list[str]:
    plain, chosen, tried, best = entry["contenders"]
    shares = [step_seconds(best) / step_seconds(one) for one in (chosen, tried)]
    spreads = [spread(times(one)) for one in entry["contenders"]]
    facts = [entry["model"], str(entry["batch"]), entry["level"], str(entry["threads"])]
    gain = step_seconds(plain) / step_seconds(chosen)
    return [*facts, *spreads, f"{gain:.2f}", *map(percent, shares)]


OPTIONS = {
    "--models": some(MODELS, MODELS),
    "--levels": some(LEVELS["AVX-512"]),
    "--threads": numbers(1),
    "--convolutions": number(60, "drawn for each level"),
    "--seed": number(1, "of the drawing"),
    "--steps": number(20, "timed steps of a turn, at most"),
    "--no-steps": {"action": "store_true", "help": "measure convolutions alone"},
    "--cache": {"type": Path, "help": "folder of measured times to begin with (a copy is used)"},
}

if __name__ == "__main__":
    Record("chosen", measure, page, OPTIONS).take()
