"""Records predictions and plans of networks whose samples fit no device, on up to 32,768 ranks in space.

`partita predict` of CosmoFlow, 3D U-Net and ScaFFold, and `partita plan` of ScaFFold, each in one process on one core, on
Frontier with one sample a step and without input time. Then, for each of these networks, the largest size of the zoo that
a plan finds to fit numbers of its GPUs. A process that takes longer than `--limit` is interrupted: a plan then prints the
best so far. All steps are predicted; nothing is trained.
"""

import json
from typing import Iterator

from page import head, quoted, shortened, table
from record_planning import limited, seconds, step
from runner import Bench, Failure, Record, say

MACHINE = "frontier"
NETWORKS = ("cosmoflow@512", "unet3d@256", "scaffold@256", "scaffold@512", "scaffold@2048")
# Parts along depth, height and width alike.
SIDES = (16, 32)
PLANS = (("scaffold@512", 256), ("scaffold@2048", 4096))
FAMILIES = {
    "cosmoflow": (512, 256, 128),
    "unet3d": (256, 128, 64),
    "scaffold": (2048, 1024, 512, 256, 128, 64, 32),
}
GPUS = (1, 8, 64, 512, 4096)
PARTS = ("predictions", "plans", "cubes")
# ScaFFold is not tried where its activations, of this many bytes a voxel, would take more than `HOPELESS` times the memory of
# all GPUs.
BYTES_A_VOXEL, GPU_BYTES, HOPELESS = 10_600, 64e9, 4


def answered(bench: Bench, *words) -> tuple[dict, object]:
    """What a process of the binary takes, and its answer as JSON, if it gave one."""
    common = ["--batch", 1, "--machine", MACHINE, "--no-io", "--json"]
    taken = limited(bench, [bench.partita, *words, *common], bench.options.limit)
    try:
        return taken, json.loads((bench.folder / "answer").read_text() or "null")
    except json.JSONDecodeError as error:
        raise Failure(f"`partita {words[0]} {words[1]}` printed no answer: {error}") from error


def figures(answer: dict) -> dict:
    return {key: answer[key] for key in ("strategy", "iteration_seconds", "memory_bytes_max")}


def predicted(bench: Bench, model: str, side: int) -> dict:
    strategy = ",".join(f"{axis}={side}" for axis in ("depth", "height", "width"))
    taken, answer = answered(bench, "predict", model, "--ranks", side**3, "--strategy", strategy)
    return {"model": model, "ranks": side**3} | taken | (figures(answer) if answer else {})


def planned(bench: Bench, model: str, ranks: int) -> dict:
    taken, answer = answered(bench, "plan", model, "--ranks", ranks)
    fit = [one for one in answer or [] if "reason" not in one]
    found = {"model": model, "ranks": ranks, "simulated": len(fit)} | taken
    return found | (figures(fit[0]) if fit else {})


def largest(bench: Bench, family: str, ranks: int) -> Iterator[dict]:
    """The plans of a family, from the largest size to one that fits."""
    for size in FAMILIES[family]:
        if family == "scaffold" and size**3 * BYTES_A_VOXEL > HOPELESS * ranks * GPU_BYTES:
            continue
        plan = planned(bench, f"{family}@{size}", ranks)
        yield plan
        if "strategy" in plan:
            return


def measure(bench: Bench) -> dict:
    found = {"limit": bench.options.limit, "predictions": [], "plans": [], "cubes": []}

    def note(key: str, one: dict) -> None:
        found[key].append(one)
        text = f"{seconds(one)} s of a core, {one['memory_bytes'] / 2**30:.2f} GiB, {step(one)}"
        say(f"{key}: {one['model']} on {one['ranks']}: {text} by `{one.get('strategy', '')[:60]}`")

    parts = bench.options.parts
    for side, model in ((side, model) for side in SIDES for model in NETWORKS if "predictions" in parts):
        note("predictions", predicted(bench, model, side))
    for model, ranks in PLANS if "plans" in parts else ():
        note("plans", planned(bench, model, ranks))
    for family, ranks in ((family, ranks) for family in FAMILIES for ranks in bench.options.gpus if "cubes" in parts):
        for plan in largest(bench, family, ranks):
            note("cubes", plan)
    return found


def gib(count: int) -> str:
    return f"{count / 2**30:.2f}"


def row(one: dict) -> list:
    rank = gib(one["memory_bytes_max"]) if "memory_bytes_max" in one else ""
    strategy = quoted(shortened(one.get("strategy", "")))
    return [one["model"], one["ranks"], seconds(one), gib(one["memory_bytes"]), step(one), rank, strategy]


def page(record: dict, raw: str):
    limit = f"{record['limit']:.0f}"
    yield head(record, "Thousands of ranks in space", f"""\
Time (user and system) and peak of memory of one process of `partita predict` or `partita plan` on one core, and what it
predicts: the step of one sample on Frontier (a rank per GCD of 64 GB), without input. Nothing was trained. A process that
took more than {limit} s was interrupted (`>`); a plan then has the best so far, or none. Raw data: `{raw}`.""")
    columns = "model | ranks> | time, s> | peak, GiB> | step> | of a rank, GiB> | strategy"
    cubes = "Of the sizes of the zoo, from the largest on; the last of each number of GPUs fits, if any does.\n\n"
    titles = {"predictions": ("Predictions", ""), "plans": ("Plans", ""), "cubes": ("The largest cube that fits", cubes)}
    for key, (title, text) in titles.items():
        if record[key]:
            yield f"## {title}\n\n{text}" + table(columns, (row(one) for one in record[key]))


OPTIONS = {
    "--limit": {"type": float, "default": 60.0, "help": "seconds of a core for a process"},
    "--parts": {"choices": PARTS, "nargs": "+", "default": PARTS, "help": "what to measure"},
    "--gpus": {"type": int, "nargs": "+", "default": GPUS, "help": "numbers of GPUs"},
}

if __name__ == "__main__":
    Record("space", measure, page, OPTIONS).take()
