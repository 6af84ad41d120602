"""Records how right predictions are: `1 - |predicted - measured| / measured` of training steps.

Three kinds of processes: calibrations, predictions, runs. In a round all calibrations are made from nothing, then
network by network predictions, which are stored, and after them the runs that they are held against. A prediction is
made from kernels measured one by one (`menu`: `partita predict` on this machine, or a calibration that measured this
very model), or by laws fitted to kernels of other models, sizes and batches (`held out`). Timed is what has a core for
each rank: one or two ranks of one thread, as threads and as processes under MPI. More ranks than cores have their
counts and arenas held against the prediction, exactly, and their order by processor seconds.
"""

import json
import math
import re
import shlex
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from statistics import mean, median, stdev
from typing import Callable, Sequence

from page import MEBIBYTE, head, percent, table
from runner import STEPS, Bench, Failure, Record, number, own_processor_seconds, say, turn
from trainings import Scene, Training, cosmology, segmentation, shapes

SCHEDULES = ("sequential", "gpipe", "1f1b", "interleaved*2", "zero-bubble", "gems", "gems*2", "chimera")
PIPELINES = tuple(f"stages=2,micro=4,schedule={name}" for name in SCHEDULES)
SPLITS = ("data=1", "data=2", "depth=2", "height=2", "filter=2", "channel=2")
PLANES = ("data=1", "data=2", "height=2", "filter=2", "channel=2")
VOLUMES = (*SPLITS[:4], "width=2", *SPLITS[4:], *PIPELINES)
IMAGES = (*PLANES[:3], "width=2", *PLANES[3:], *PIPELINES)
IN_TWO = tuple(f"stages=2,micro=2,schedule={name}" for name in ("gpipe", "1f1b", "gems"))
# Scene, batch, strategies, and whether its kernels are held out.
CASES = (
    (cosmology(32, 16), 8, VOLUMES, False),
    (segmentation(32, 8), 2, (*SPLITS, *IN_TWO), True),
    (shapes("resnet50@64", 16), 8, (*IMAGES, "branch=2"), True),
    (shapes("vgg16@224", 8), 4, (*PLANES, *IN_TWO), False),
    (shapes("inceptionv3@128", 16), 4, ("data=1", "data=2", "branch=2", "height=2"), False),
)
# What calibrations of the menu measure.
OWN = sorted(f"{scene.model}:{batch}" for scene, batch, _, held in CASES if not held)
UNDER_MPI = {
    "cosmoflow@32": ("data=2", "depth=2", "filter=2", "channel=2", *PIPELINES[1:3], PIPELINES[5]),
    "unet3d@32": ("data=2", "depth=2", "channel=2", IN_TWO[1]),
    "resnet50@64": ("data=2", "height=2", "filter=2", "channel=2", *PIPELINES[1:3], PIPELINES[5], "branch=2"),
    "vgg16@224": ("data=2", "height=2", "channel=2", IN_TWO[1]),
    "inceptionv3@128": ("data=2", "branch=2"),
}

# Whole, halved or quartered, none of these batches is one of a case whose kernels are held out, or of its ranks
# and micro-batches, so that no kernel of such a case that works on samples is measured, whatever it is split into;
# what works on parameters alone, as the update, has the same shape in every batch.
HELD_OUT_FROM = (
    "unet3d@32:3", "cosmoflow@32+bn:4", "cosmoflow@64:1", "resnet50@64:6", "resnet50@128:2", "alexnet@224:4",
    "inceptionv3@128:2",
)

# Steps of turns take at least so many seconds together, so that what disturbs for a moment does not count.
TURN_SECONDS = 2.0
# Memory whose speed differs by no more than this is as fast as before.
SAME_SPEED = 0.1
# Work in which a rank waits rather than computes.
WAITING = ("exchange", "allreduce", "allgather", "reduce_scatter", "alltoall", "load")
# Steps of the runs; the first measures kernels to cut into stages, and the difference of the others is
# what steps take.
CROWDED_STEPS = (2, 2, 34)
# More ranks than cores: ranks, batch and mesh of CosmoFlow.
CROWDED = (
    (4, 8, "data=2,depth=2"),
    (4, 8, "data=2,filter=2"),
    (4, 8, "depth=2,height=2"),
    (8, 8, "depth=2,height=2,width=2"),
    (8, 8, "data=2; stages=[depth=2|depth=2]; micro=2; schedule=gems"),
    (24, 8, "data=2; stages=[depth=2,height=2|depth=2,height=2|height=2,width=2]; micro=2; schedule=1f1b"),
)
KEPT = ("strategy", "digest", "iteration_seconds", "memory_bytes_max", "basis", "known", "breakdown", "interval")


class Case(Training):
    """A run whose prediction is stored before it."""

    def __init__(self, bench: Bench, scene: Scene, strategy: str, batch: int, world: str, held_out: bool) -> None:
        ranks = 1 if strategy == "data=1" else 2
        launcher = [*bench.options.mpirun, ranks] if world == "mpi" else ()
        # The prediction is there already.
        how = {"launcher": launcher, "words": ["--no-prediction"], "name": f"{strategy}, {world}"}
        super().__init__(bench, scene, strategy, batch, bench.options.steps, ranks, **how)
        self.facts |= {"batch": batch}
        self.asked, self.world, self.held_out = strategy, world, held_out
        self.predictions, self.turns = [], []

    def predict(self) -> None:
        """Once more. All must be of one program."""
        samples = "int16" if self.scene.transform == "log1p" else "int16-scaled"
        words = ["predict", self.scene.model, "--machine", self.machine, "--ranks", self.ranks, "--batch", self.batch]
        answer = self.bench.json(*words, "--strategy", self.strategy, "--samples", samples)
        # What was cut into stages by predicted times stays so, and is run as it was predicted.
        self.strategy = self.facts["strategy"] = answer["strategy"]
        self.predictions.append({key: answer[key] for key in KEPT if key in answer})
        if answer["digest"] != self.predictions[0]["digest"]:
            raise Failure(f"{self.scene.model} {self.name}: predictions are of different programs")

    @property
    def machine(self) -> str:
        """The machine file by which it is predicted; on threads, kernels that are known are measured themselves."""
        if self.world == "threads" and not self.held_out:
            return "here"
        return f"{'fitted' if self.held_out else 'menu'}{'-mpi' if self.world == 'mpi' else ''}.toml"

    def turn(self) -> dict:
        """As many steps as are asked for, or as the prediction says that take long enough."""
        prediction = self.predictions[-1]
        self.steps = max(self.bench.options.steps, math.ceil(TURN_SECONDS / prediction["iteration_seconds"]))
        result, speed = with_memory_speed(self.bench, self.train)
        if result["digest"] != prediction["digest"]:
            raise Failure(f"{self.scene.model} {self.name}: what was predicted is not what ran")
        figures = {"step_seconds": result["step_seconds_median"], "steps": result["steps_measured"]}
        return figures | {"memory": result["memory"], "triad_gbytes": speed}

    def record(self) -> dict:
        kept = ("ranks", "batch", "world", "held_out", "predictions", "turns")
        facts = {"model": self.scene.model, "strategy": self.asked, "ran_as": self.strategy}
        return facts | {key: getattr(self, key) for key in kept}


def with_memory_speed(bench: Bench, work: Callable) -> tuple:
    """What `work` returns, and the mean of the GB/s of a triad on both cores before and after it: they change with what
    other machines of the host do."""

    def speed() -> float:
        how = {"input": "machine\n", "capture_output": True, "text": True, "check": True}
        done = subprocess.run([bench.options.kernels, "2"], **how)
        return json.loads(done.stdout.splitlines()[-1])["triad_gbytes"]

    before = speed()
    return work(), (before + speed()) / 2


def calibrated(bench: Bench, name: str, models: Sequence[str], launcher: Sequence = ()) -> dict:
    """The answer of a calibration of one pass; its machine file is NAME.toml."""
    say(f"Calibration {name}: {', '.join(models)}")
    forget(bench)
    words = ["calibrate", "--name", name, "--output", f"{name}.toml", "--replace", "--ranks", 2, "--passes", 1]
    words += ["--models", ",".join(models)]
    answer, speed = with_memory_speed(bench, lambda: bench.json(*words, launcher=launcher))
    return answer | {"triad_gbytes": speed}


def forget(bench: Bench) -> None:
    """What was measured on this machine so far."""
    shutil.rmtree(bench.folder / "cache", ignore_errors=True)


def calibrations_of(bench: Bench, held_out: bool) -> dict:
    """The answers of those by which kernels held out, or those of the menu under MPI, are predicted."""
    kind, models = ("fitted", HELD_OUT_FROM) if held_out else ("menu", OWN)
    calibrations = {"fitted": calibrated(bench, "fitted", HELD_OUT_FROM)} if held_out else {}
    if bench.options.mpirun:
        name = f"{kind}-mpi"
        calibrations[name] = calibrated(bench, name, models, [*bench.options.mpirun, 2])
    return calibrations


def crowded(bench: Bench, scene: Scene, ranks: int, batch: int, strategy: str) -> dict:
    """Runs of more ranks than cores: counts are compared by the run itself, arenas and order here."""
    say(f"{scene.model}, {ranks} ranks: {strategy}")
    runs = []
    for steps in CROWDED_STEPS:
        before = own_processor_seconds()
        result = Training(bench, scene, strategy, batch, steps, ranks, words=["--no-prediction"]).train()
        # Of the whole run: what is not of steps, like the cut into stages, is the same in a longer run.
        runs.append((result, own_processor_seconds() - before))
    _, (short, before), (result, after) = runs
    steps = result["steps"] - short["steps"]
    prediction = predicted_of_many(bench, scene.model, batch, ranks, result["strategy"])
    kernels = sum(seconds for kind, seconds in prediction["by_kind"].items() if kind not in WAITING)
    return {
        "model": scene.model,
        "batch": batch,
        "ranks": ranks,
        "strategy": result["strategy"],
        "digests": [prediction["digest"], result["digest"]],
        "arena_bytes_max": [prediction["memory_bytes_max"], result["memory"]["predicted_arena_bytes_max"]],
        "memory": result["memory"],
        "core_seconds_predicted": prediction["ranks"] * kernels,
        "core_seconds_measured": (after - before) / steps,
        "steps": steps,
    }


def predicted_of_many(bench: Bench, model: str, batch: int, ranks: int, strategy: str) -> dict:
    """On a machine of as many nodes as the ranks need, each like this one."""
    text = Path(bench.folder / "menu.toml").read_text()
    many = re.sub(r"^nodes = \{ value = 1,", f"nodes = {{ value = {ranks},", text, flags=re.M)
    (bench.folder / "many.toml").write_text(many)
    words = ["predict", model, "--machine", "many.toml", "--ranks", ranks, "--batch", batch]
    return bench.json(*words, "--strategy", strategy, "--samples", "int16")


def predictions_and_runs(bench: Bench, cases: list[Case], calibrations: dict, round_name: str) -> None:
    """Of one network: what is measured for the predictions is measured for them, and runs come after all of them."""

    def predict() -> None:
        for case in cases:
            say(f"{round_name}: predicted: {case.scene.model}, {case.name}")
            case.predict()

    forget(bench)
    _, speed = with_memory_speed(bench, predict)
    for case in cases:
        # Of the calibration by which it is predicted; kernels that are measured themselves have none.
        by = calibrations.get(case.machine.removesuffix(".toml"), {"triad_gbytes": speed})
        case.predictions[-1]["triad_gbytes"] = by["triad_gbytes"]
    for case in cases:
        case.turns.append(turn(case, f"{round_name}: {case.scene.model}"))


def measure(bench: Bench) -> dict:
    bench.options.mpirun = shlex.split(bench.options.mpirun)
    networks = []
    for scene, batch, strategies, held in CASES:
        scene.make(bench)
        inside = UNDER_MPI[scene.model] if bench.options.mpirun else ()
        worlds = [(one, "threads") for one in strategies] + [(one, "mpi") for one in inside]
        networks.append([Case(bench, scene, strategy, batch, world, held) for strategy, world in worlds])
    # By which cases of more ranks than cores are predicted.
    calibrations = {"menu": calibrated(bench, "menu", OWN)}
    for index in range(1, bench.options.rounds + 1):
        # The memory of the machine changes its speed within minutes, so calibrations come right before their networks.
        for held_out in (False, True):
            found = calibrations_of(bench, held_out)
            calibrations |= {f"{name}, {index}": answer for name, answer in found.items()}
            for cases in (cases for cases in networks if cases[0].held_out == held_out):
                predictions_and_runs(bench, cases, found, f"round {index}")
    return {
        "steps": bench.options.steps,
        "turn_seconds": TURN_SECONDS,
        "mpi": bench.options.mpirun,
        "held_out_from": HELD_OUT_FROM,
        "calibrations": calibrations,
        "cases": [case.record() for cases in networks for case in cases],
        "crowded": [crowded(bench, CASES[0][0], *one) for one in CROWDED],
    }


def page(record: dict, raw: str):
    yield head(record, "How right predictions of a training step are", f"""\
Accuracy is `1 - |predicted - measured| / measured`. Calibrations, predictions and runs are processes of
their own. In each of {record['rounds']} rounds calibrations were made from nothing, right before the
networks that are predicted by them; then, network by network, all predictions were stored before the
first run. A run counts with the median of its steps (at least {record['steps']}, and {record['turn_seconds']:g} s of\
 them;
two more not counted), held against the prediction of its round; a case counts with the middle error of
its rounds. Times and memory shown are the middle ones; noise is their standard deviation. Ranks have one
thread and one core each. `menu`: the very kernels were measured; `held out`: they are estimated by laws
fitted to kernels of other models, sizes or batches
({', '.join(record['held_out_from'])}).
Raw data: `{raw}`.""")
    cases = [figures_of(case) for case in record["cases"]]
    columns = "cases | number> | mean accuracy> | least> | mean error> | noise of runs> | of predictions>"
    share = percent(mean(case["held_out"] for case in cases))
    runs = [pair for case in cases for pair in zip(case["predictions"], case["turns"], strict=True)]
    lines = [f"Held out are {share} of the cases.", *sureness(runs)]
    yield "## Summary\n\n" + table(columns + " | under 85 % beyond noise>", summary(cases))
    yield "\n".join(lines)
    yield "\n".join(speeds(runs))
    columns = "model | world | predicted best | measured best | slower by> | noise>"
    yield "## The best of two ranks\n\n" + table(columns, best(cases))
    columns = "strategy | predicted ms> | noise> | measured ms> | noise> | accuracy> | triad GB/s, kernels / run>"
    for world, model in dict.fromkeys((case["world"], case["model"]) for case in cases):
        some = [case for case in cases if (case["world"], case["model"]) == (world, model)]
        kind = "held out" if some[0]["held_out"] else "menu"
        rows = table(columns + " | other cores busy> | memory predicted / measured MiB>", map(row, some))
        yield f"## {model}, batch {some[0]['batch']}, {world}, {kind}\n\n{rows}"
    columns = "strategy | ranks> | same program | largest arena predicted / made | core-seconds predicted> | measured>"
    yield f"""\
## More ranks than cores

Messages, bytes and flops that ranks counted equal the program's, or the run would have failed.
Core-seconds of a step: predicted, those of all kernels with all cores at work; measured, what the
processors worked longer for a run of more steps, each with its share of the validations.

{table(columns, map(crowded_row, record["crowded"]))}

{order(record["crowded"])}"""
    yield f"""\
## Calibrations

Errors of kernels that the laws had not seen, a fifth of each family at a time.

{table("calibration | kernels> | world | median error> | by time> | total>", calibrations(record["calibrations"]))}"""


def calibrations(answers: dict):
    for name, one in answers.items():
        errors = (percent(one["validation"][key]) for key in ("median", "mean_by_time", "total"))
        yield [name, one["kernels"], one["world"], *errors]


def figures_of(case: dict) -> dict:
    measured = [turn["step_seconds"] for turn in case["turns"]]
    predicted = [one["iteration_seconds"] for one in case["predictions"]]
    error = median(one / step - 1 for one, step in zip(predicted, measured, strict=True))
    return case | {
        "measured": median(measured),
        "predicted": median(predicted),
        "accuracy": 1 - abs(error),
        "error": error,
        "noise": deviation(measured),
        "predictions_noise": deviation(predicted),
        "others": max(turn.get("other_cores", 0) + turn.get("stolen_cores", 0) for turn in case["turns"]),
    }


def deviation(seconds: list[float]) -> float:
    """The standard deviation, as a share of the middle."""
    return stdev(seconds) / median(seconds) if len(seconds) > 1 else 0.0


def summary(cases: list[dict]):
    for name, some in {
        "all": cases,
        "menu": [case for case in cases if not case["held_out"]],
        "held out": [case for case in cases if case["held_out"]],
        "threads": [case for case in cases if case["world"] == "threads"],
        "MPI": [case for case in cases if case["world"] == "mpi"],
    }.items():
        if some:
            means = (percent(mean(case[key] for case in some)) for key in ("error", "noise", "predictions_noise"))
            accuracies = [case["accuracy"] for case in some]
            low = sum(case["accuracy"] + case["noise"] < 0.85 for case in some)
            yield [name, len(some), percent(mean(accuracies)), percent(min(accuracies)), *means, low]


def sureness(runs: list[tuple]) -> list[str]:
    """How many runs lie in the interval of their prediction; nothing in records that have none."""
    known = [(one["interval"], turn["step_seconds"]) for one, turn in runs if "interval" in one]
    if not known:
        return []
    inside = percent(mean(one["low_seconds"] <= step <= one["high_seconds"] for one, step in known))
    width = percent(median(math.sqrt(one["high_seconds"] / one["low_seconds"]) for one, _ in known) - 1)
    return [f"Of {len(known)} runs {inside} lie in their interval of 90 %, of ±{width} (median)."]


def speeds(runs: list[tuple]):
    """How right predictions are where the memory was as fast in the run as when its kernels were measured; nothing in
    records that do not know it."""
    runs = [pair for pair in runs if all("triad_gbytes" in one for one in pair)]
    if not runs:
        return
    every = [one["triad_gbytes"] for pair in runs for one in pair]
    span = f"{min(every):.0f} and {max(every):.0f} GB/s"
    yield f"The memory's speed, a triad on both cores, was between {span}: other machines\nof the host share it."
    found: dict[str, list[float]] = {"at most": [], "more than": []}
    for one, turn in runs:
        is_same = abs(turn["triad_gbytes"] / one["triad_gbytes"] - 1) <= SAME_SPEED
        accuracy = 1 - abs(one["iteration_seconds"] / turn["step_seconds"] - 1)
        found["at most" if is_same else "more than"].append(accuracy)
    for words, some in found.items():
        if some:
            yield (
                f"Of runs in which it differed {words} {percent(SAME_SPEED)} from that when their kernels were"
                f" measured, {len(some)} of {len(runs)}, the mean accuracy is {percent(mean(some))}."
            )


def best(cases: list[dict]):
    """Whether what is predicted to be best on two ranks is."""
    for model, world in dict.fromkeys((case["model"], case["world"]) for case in cases):
        some = [c for c in cases if (c["model"], c["world"]) == (model, world) and c["ranks"] == 2]
        if len(some) < 2:
            continue
        chosen, fastest = (min(some, key=lambda case: case[key]) for key in ("predicted", "measured"))
        slower = chosen["measured"] / fastest["measured"] - 1
        noise = max(chosen["noise"], fastest["noise"])
        verdict = "" if slower <= max(0.03, noise) else " (**more**)"
        yield [model, world, chosen["strategy"], fastest["strategy"], percent(slower) + verdict, percent(noise)]


def row(case: dict) -> list:
    figures = []
    for key, noise in (("predicted", "predictions_noise"), ("measured", "noise")):
        figures += [f"{1e3 * case[key]:.1f}", percent(case[noise])]
    speed, memory = [[one.get("triad_gbytes") for one in case[key]] for key in ("predictions", "turns")], ""
    triads = " / ".join(f"{median(one):.0f}" for one in speed) if None not in speed[0] + speed[1] else ""
    known = [[turn["memory"].get(key) for turn in case["turns"]] for key in ("predicted_bytes", "measured_peak_bytes")]
    if all(known[0] + known[1]):
        own, real = (median(one) / MEBIBYTE for one in known)
        memory = f"{own:.1f} / {real:.1f} ({100 * (own / real - 1):+.1f} %)"
    return [case["strategy"], *figures, percent(case["accuracy"]), triads, f"{case['others']:.2f}", memory]


def crowded_row(one: dict) -> list:
    same = "yes" if one["digests"][0] == one["digests"][1] else "**no**"
    arenas = " / ".join(map(str, one["arena_bytes_max"]))
    seconds = (f"{one[key]:.3f}" for key in ("core_seconds_predicted", "core_seconds_measured"))
    return [one["strategy"], one["ranks"], same, arenas, *seconds]


def order(entries: list[dict]) -> str:
    """Pairs in the right order, and pairs that are clearly apart."""
    right = apart = 0
    for pair in combinations(entries, 2):
        least, most = sorted(pair, key=lambda one: one["core_seconds_measured"])
        if most["core_seconds_measured"] > 1.1 * least["core_seconds_measured"]:
            apart += 1
            right += most["core_seconds_predicted"] > least["core_seconds_predicted"]
    pairs = f"Of {apart} pairs whose measured core-seconds are more than 10 % apart"
    return f"{pairs}, {right} are predicted in that order."


OPTIONS = {
    "--steps": number(8, STEPS),
    "--mpirun": {"default": "mpirun --allow-run-as-root -n", "help": "starts MPI; '' leaves it out"},
}

if __name__ == "__main__":
    Record("accuracy", measure, page, OPTIONS).take()
