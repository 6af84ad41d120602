"""Records how well `auto` chooses from an empty cache: seconds to the first epoch, and the step of what it chose beside
those of other strategies, which are the best of `plan` and all splits along one axis."""

import os
import shutil
import subprocess
import time

from page import disturbance, head, percent, spread, step_seconds, table, times
from runner import Bench, Failure, Record, number, race, say, some
from trainings import Training, cosmology, prepare, result_of, segmentation, settings_of, shapes

RANKS = 2
# Network, mini-batch, and the axes of its space.
NETWORKS = {
    "cosmoflow@32": (cosmology(32, 16), 4, ("depth", "height", "width")),
    "cosmoflow@64": (cosmology(64, 8), 2, ("depth", "height", "width")),
    "unet3d@32": (segmentation(32, 4), 2, ("depth", "height", "width")),
    "resnet18@64": (shapes("resnet18@64", 32, 10), 8, ("height", "width")),
    "resnet50@64": (shapes("resnet50@64", 32, 10), 8, ("height", "width")),
    "densenet121@64": (shapes("densenet121@64", 32, 10), 8, ("height", "width")),
}
OTHERS = ("data=2", "filter=2", "channel=2", "stages=2,micro=2")
BEST = 4


def chosen(bench: Bench, scene, batch: int) -> dict:
    """What `auto` chooses from an empty cache, with the seconds from the start of the command to the end of the first epoch."""
    shutil.rmtree(bench.folder / "cache", ignore_errors=True)
    settings = settings_of(scene.model, scene.data, batch, 1, transform=scene.transform, kernels="cpu")
    prepare(bench, settings | {"ranks": RANKS, "strategy": "auto"})
    variables = os.environ | {"XDG_CACHE_HOME": str(bench.folder / "cache")}
    command = [str(bench.partita), "train", "run.toml", "--budget", f"{bench.options.budget}s"]
    start = time.monotonic()
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=bench.folder, env=variables, **how) as process:
        said = []
        for line in process.stdout:
            said.append(line)
            if line.startswith("epoch 1/"):
                seconds = time.monotonic() - start
    if process.returncode != 0:
        raise Failure(f"{scene.model} ended with {process.returncode}: {said[-3:]}")
    result = result_of(bench)
    say(f"{scene.model}: {result['strategy']} after {seconds:.1f} s")
    return {"strategy": result["strategy"], "first_epoch_seconds": seconds}


def rivals(bench: Bench, scene, batch: int, axes: tuple) -> list[str]:
    """All splits along one axis that the network has, and the best of `plan` with all kernels measured."""
    words = ("--ranks", RANKS, "--batch", batch)
    planned = bench.json("plan", scene.model, *words, "--budget", "600s", "--all")
    best = [one["strategy"] for one in planned if "iteration_seconds" in one][:BEST]
    single = [*OTHERS, *(f"{axis}=2" for axis in axes)]
    return best + [one for one in single if "answer" in bench.asked("lower", scene.model, *words, "--strategy", one)]


def measure(bench: Bench) -> dict:
    networks = []
    for name in bench.options.networks:
        scene, batch, axes = NETWORKS[name]
        own = bench.inside(name)
        scene.make(own)
        found = chosen(own, scene, batch)
        strategies = dict.fromkeys([found["strategy"], *rivals(own, scene, batch, axes)])
        how = {"words": ["--no-prediction"]}
        racers = [Training(own, scene, one, batch, bench.options.steps, RANKS, name=one, **how) for one in strategies]
        networks.append({"network": name, "batch": batch} | found | {"contenders": race(own, racers, name)})
    return {"budget_seconds": bench.options.budget, "networks": networks}


def regret(network: dict) -> float:
    """How much longer a step of the choice takes than that of the fastest, as a fraction."""
    own = next(one for one in network["contenders"] if one["name"] == network["strategy"])
    return step_seconds(own) / min(map(step_seconds, network["contenders"])) - 1


def page(record: dict, raw: str):
    yield head(record, "What `auto` chooses", f"""From an empty cache, with {record['budget_seconds']} s for measurements of kernels (`--budget`; a tenth of ten minutes), on
{RANKS} ranks of one thread. Shown are the seconds from the start of the command to the end of the first epoch, and how much longer
a step of the chosen strategy takes than that of the fastest of all that were run: the best of `plan` with all kernels
measured, and all splits along one axis. All strategies of a network take turns, {record['rounds']} round(s). Raw data: `{raw}`.""")
    yield disturbance(record)
    rows = [[
        f"`{one['network']}`", one["batch"], f"`{one['strategy']}`", f"{one['first_epoch_seconds']:.1f}",
        len(one["contenders"]), percent(regret(one)),
    ] for one in record["networks"]]
    yield table("network | batch> | chosen | first epoch, s> | strategies> | regret>", rows)
    for one in record["networks"]:
        ordered = sorted(one["contenders"], key=step_seconds)
        rows = [[f"`{other['name']}`", spread(times(other))] for other in ordered]
        yield f"## {one['network']}\n\n" + table("strategy | seconds a step>", rows)


OPTIONS = {"--steps": number(10), "--budget": number(60), "--networks": some(list(NETWORKS), list(NETWORKS))}

if __name__ == "__main__":
    Record("auto", measure, page, OPTIONS).take()
