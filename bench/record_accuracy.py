"""Records how right predictions are: `1 - |predicted - measured| / measured` of training steps.

Three kinds of processes: calibrations, predictions, runs. In a round all calibrations are made from
nothing, then network by network predictions, which are stored, and after them the runs that they are
held against; the middle of the errors of all rounds counts. A prediction is made from kernels measured
one by one (`menu`: `partita predict` on this machine, or a calibration that measured this very model),
or by laws fitted to kernels of other models, sizes and batches (`held out`).
Timed is what has a core for each rank: one or two ranks of one thread, as threads and as processes under
MPI. More ranks than cores have their counts and arenas held against the prediction, exactly, and their
order by processor seconds.

Writes records/<date>-accuracy.md and, with all raw figures, the same name with .json.
"""

import argparse
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import contest
import record_accuracy_text
from contest import Failure, run_partita, say
from runs import Scene, Training

PIPELINES = (
    "stages=2,micro=4,schedule=sequential",
    "stages=2,micro=4,schedule=gpipe",
    "stages=2,micro=4,schedule=1f1b",
    "stages=2,micro=4,schedule=interleaved*2",
    "stages=2,micro=4,schedule=zero-bubble",
    "stages=2,micro=4,schedule=gems",
    "stages=2,micro=4,schedule=gems*2",
    "stages=2,micro=4,schedule=chimera",
)
VOLUMES = ("data=1", "data=2", "depth=2", "height=2", "width=2", "filter=2", "channel=2", *PIPELINES)
IMAGES = ("data=1", "data=2", "height=2", "width=2", "filter=2", "channel=2", *PIPELINES)

COSMOLOGY = ("cosmology", "--grid", 32, "--universes", 17, "--validation", 1 / 17)
SEGMENTATION = ("segmentation", "--grid", 32, "--volumes", 9, "--validation", 1 / 9)


def images(size, count):
    return ("shapes", "--size", size, "--images", count * 3 // 2, "--classes", 1000, "--validation", 1 / 3)


LOG, SCALE = '"log1p"', "{scale = 0.01}"

SPLITS = ("data=1", "data=2", "depth=2", "height=2", "filter=2", "channel=2")
IN_TWO = tuple(f"stages=2,micro=2,schedule={name}" for name in ("gpipe", "1f1b", "gems"))
# Scene, batch, strategies, and whether its kernels are held out.
CASES = (
    (Scene("cosmoflow@32", COSMOLOGY, 16, LOG), 8, VOLUMES, False),
    (Scene("unet3d@32", SEGMENTATION, 8, SCALE), 2, (*SPLITS, *IN_TWO), True),
    (Scene("resnet50@64", images(64, 16), 16, SCALE), 8, (*IMAGES, "branch=2"), True),
    (Scene("vgg16@224", images(224, 8), 8, SCALE), 4, ("data=1", "data=2", "height=2", "filter=2", "channel=2", *IN_TWO), False),
    (Scene("inceptionv3@128", images(128, 16), 16, SCALE), 4, ("data=1", "data=2", "branch=2", "height=2"), False),
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

# Work in which a rank waits rather than computes.
WAITING = ("exchange", "allreduce", "allgather", "reduce_scatter", "alltoall", "load")

# Steps of the runs; the first measures kernels to cut into stages, and the difference of the others is
# what steps take.
CROWDED_STEPS = (2, 2, 34)

# More ranks than cores: mesh and batch.
CROWDED = (
    ("cosmoflow@32", 8, 4, "data=2,depth=2"),
    ("cosmoflow@32", 8, 4, "data=2,filter=2"),
    ("cosmoflow@32", 8, 4, "depth=2,height=2"),
    ("cosmoflow@32", 8, 8, "depth=2,height=2,width=2"),
    ("cosmoflow@32", 8, 8, "data=2; stages=[depth=2|depth=2]; micro=2; schedule=gems"),
    ("cosmoflow@32", 8, 24, "data=2; stages=[depth=2,height=2|depth=2,height=2|height=2,width=2]; micro=2; schedule=1f1b"),
)


class Case(Training):
    """A run whose prediction is stored before it."""

    def __init__(self, options, folder, scene, strategy, batch, world, held_out):
        ranks = 1 if strategy == "data=1" else 2
        launcher = [*options.mpirun, str(ranks)] if world == "mpi" else ()
        super().__init__(options, folder, scene, strategy, batch, options.steps, ranks, launcher=launcher)
        self.name = f"{strategy}, {world}"
        self.facts |= {"batch": batch}
        self.asked = strategy
        self.world, self.held_out = world, held_out
        self.samples = "int16" if scene.transform == '"log1p"' else "int16-scaled"
        self.predictions, self.turns = [], []
        # The prediction is there already.
        self.words.append("--no-prediction")

    def predict(self):
        """Once more. All must be of one program."""
        words = ["predict", self.scene.model, "--machine", self.machine, "--ranks", str(self.ranks)]
        words += ["--batch", str(self.batch), "--strategy", self.strategy, "--samples", self.samples, "--json"]
        answer = json.loads(run_partita(self.options, self.folder, words))
        kept = ("strategy", "digest", "iteration_seconds", "memory_bytes_max", "basis", "known", "breakdown", "interval")
        prediction = {key: answer[key] for key in kept if key in answer}
        # What was cut into stages by predicted times stays so, and is run as it was predicted.
        self.strategy = self.facts["strategy"] = answer["strategy"]
        self.predictions.append(prediction)
        if prediction["digest"] != self.predictions[0]["digest"]:
            raise Failure(f"{self.scene.model} {self.name}: predictions are of different programs")

    @property
    def machine(self):
        """The machine file by which it is predicted; on threads, kernels that are known are measured themselves."""
        in_mpi = self.world == "mpi"
        if self.held_out:
            return "fitted-mpi.toml" if in_mpi else "fitted.toml"
        return "menu-mpi.toml" if in_mpi else "here"

    @property
    def measured_at(self):
        """By which calibration it is predicted; none for kernels that are measured themselves."""
        return None if self.machine == "here" else self.machine.removesuffix(".toml")

    def turn(self):
        """As many steps as are asked for, or as the prediction says that take long enough."""
        prediction = self.predictions[-1]
        self.steps = max(self.options.steps, math.ceil(TURN_SECONDS / prediction["iteration_seconds"]))
        result, speed = with_memory_speed(self.options, self.train)
        if result["digest"] != prediction["digest"]:
            raise Failure(f"{self.scene.model} {self.name}: what was predicted is not what ran")
        return {
            "step_seconds": result["step_seconds_median"],
            "steps": result["steps_measured"],
            "memory": result["memory"],
            "triad_gbytes": speed,
        }

    def entry(self):
        return {
            "model": self.scene.model,
            "strategy": self.asked,
            "ran_as": self.strategy,
            "ranks": self.ranks,
            "batch": self.batch,
            "world": self.world,
            "held_out": self.held_out,
            "predictions": self.predictions,
            "turns": self.turns,
        }


def with_memory_speed(options, work):
    """What `work` returns, and the mean of the GB/s of a triad on both cores before and after it: they change with what
    other machines of the host do."""

    def speed():
        done = subprocess.run([options.kernels, "2"], input="machine\n", capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])["triad_gbytes"]

    before = speed()
    return work(), (before + speed()) / 2


def calibrated(options, folder, name, models, launcher=()):
    """The answer of a calibration of one pass; its machine file is NAME.toml."""
    say(f"Calibration {name}: {', '.join(models)}")
    forget(folder)
    words = ["calibrate", "--name", name, "--output", f"{name}.toml", "--replace", "--ranks", "2", "--passes", "1"]
    words += ["--models", ",".join(models), "--json"]
    answer, speed = with_memory_speed(options, lambda: run_partita(options, folder, words, launcher))
    return json.loads(answer) | {"triad_gbytes": speed}


def forget(folder):
    """What was measured on this machine so far."""
    shutil.rmtree(folder / "cache", ignore_errors=True)


def crowded(options, folder, scenes):
    """Runs of more ranks than cores: counts are compared by the run itself, arenas and order here."""
    entries = []
    for model, batch, ranks, strategy in CROWDED:
        say(f"{model}, {ranks} ranks: {strategy}")
        runs = [crowded_run(options, folder, scenes[model], batch, ranks, strategy, steps) for steps in CROWDED_STEPS]
        _, (short, before), (result, after) = runs
        steps = result["steps"] - short["steps"]
        prediction = predicted_of_many(options, folder, model, batch, ranks, result["strategy"])
        kernels = {kind: seconds for kind, seconds in prediction["by_kind"].items() if kind not in WAITING}
        entries.append({
            "model": model,
            "batch": batch,
            "ranks": ranks,
            "strategy": result["strategy"],
            "digests": [prediction["digest"], result["digest"]],
            "arena_bytes_max": [prediction["memory_bytes_max"], result["memory"]["predicted_arena_bytes_max"]],
            "memory": result["memory"],
            "core_seconds_predicted": prediction["ranks"] * sum(kernels.values()),
            "core_seconds_measured": (after - before) / steps,
            "steps": steps,
        })
    return entries


def crowded_run(options, folder, scene, batch, ranks, strategy, steps):
    """What `result.json` holds, and the processor seconds of the whole run: what is not of steps, like
    the cut into stages, is the same in a longer run."""
    training = Training(options, folder, scene, strategy, batch, steps, ranks)
    training.words.append("--no-prediction")
    before = contest.own_processor_seconds(())
    result = training.train()
    return result, contest.own_processor_seconds(()) - before


def predicted_of_many(options, folder, model, batch, ranks, strategy):
    """On a machine of as many nodes as the ranks need, each like this one."""
    text = Path(folder / "menu.toml").read_text()
    many = re.sub(r"^nodes = \{ value = 1,", f"nodes = {{ value = {ranks},", text, flags=re.M)
    (folder / "many.toml").write_text(many)
    words = ["predict", model, "--machine", "many.toml", "--ranks", ranks, "--batch", batch]
    words += ["--strategy", strategy, "--samples", "int16", "--json"]
    return json.loads(run_partita(options, folder, map(str, words)))


def calibrations_of(options, folder, held_out):
    """The answers of those by which kernels held out, or those of the menu under MPI, are predicted."""
    kind, models = ("fitted", HELD_OUT_FROM) if held_out else ("menu", OWN)
    calibrations = {"fitted": calibrated(options, folder, "fitted", HELD_OUT_FROM)} if held_out else {}
    if options.mpirun:
        name, launcher = f"{kind}-mpi", [*options.mpirun, "2"]
        calibrations[name] = calibrated(options, folder, name, models, launcher)
    return calibrations


def predictions_and_runs(options, folder, cases, calibrations, round_name):
    """Of one network: what is measured for the predictions is measured for them, and runs come after all of them."""

    def predict():
        for case in cases:
            say(f"{round_name}: predicted: {case.scene.model}, {case.name}")
            case.predict()

    forget(folder)
    _, speed = with_memory_speed(options, predict)
    for case in cases:
        by = calibrations.get(case.measured_at)
        case.predictions[-1]["triad_gbytes"] = by["triad_gbytes"] if by else speed
    for case in cases:
        case.turns.append(contest.turn(case, f"{round_name}: {case.scene.model}"))


def record(options, folder):
    head = contest.head(options, folder, "record_accuracy.py", ["--steps", options.steps])
    scenes = {}
    for scene, *_ in CASES:
        scenes[scene.model] = scene
        scene.make(options, folder)
    networks = []
    for scene, batch, strategies, held in CASES:
        cases = [Case(options, folder, scene, s, batch, "threads", held) for s in strategies]
        if options.mpirun:
            inside = UNDER_MPI.get(scene.model, ())
            cases += [Case(options, folder, scene, s, batch, "mpi", held) for s in inside]
        networks.append(cases)
    # By which cases of more ranks than cores are predicted.
    calibrations = {"menu": calibrated(options, folder, "menu", OWN)}
    for number in range(1, options.rounds + 1):
        # The memory of the machine changes its speed within minutes, so calibrations come right before their networks.
        for held_out in (False, True):
            found = calibrations_of(options, folder, held_out)
            calibrations |= {f"{name}, {number}": answer for name, answer in found.items()}
            for cases in networks:
                if cases[0].held_out == held_out:
                    predictions_and_runs(options, folder, cases, found, f"round {number}")
    return head | {
        "finished": contest.now(),
        "steps": options.steps,
        "turn_seconds": TURN_SECONDS,
        "mpi": options.mpirun,
        "held_out_from": HELD_OUT_FROM,
        "calibrations": calibrations,
        "cases": [case.entry() for cases in networks for case in cases],
        "crowded": crowded(options, folder, scenes),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--steps", type=contest.whole, default=8, help="timed steps of a turn, at least")
    parser.add_argument(
        "--mpirun", type=str.split, default=["mpirun", "--allow-run-as-root", "-n"], help="starts MPI; '' leaves it out"
    )
    contest.take(parser, "accuracy", record, record_accuracy_text.write)


if __name__ == "__main__":
    main()
