"""Records training steps of five networks, tuned and untuned, beside PyTorch's best configuration.

CosmoFlow at 128 and 3D U-Net at 64 with one sample, VGG16 and ResNet-50 at 224 with four images,
AlexNet with eight; with one thread and with two, at the highest instruction level of the processor and
at AVX2. For each of these `partita tune` measures first, into the cache of this record, and is timed; for
3D U-Net and VGG16, whose steps are long, without micro-batches.
Partita then trains with `workspace=off` (untuned), `workspace=live` and `workspace=64MiB`. PyTorch
computes what `partita inspect MODEL --text` prints, read by peer_steps.py, in both of its memory layouts,
with torch.compile and without.

The contenders of a network, a number of threads and a level take turns: all of them once is a round. A
turn of Partita is a `partita train`, whose first two steps it leaves out itself and whose steps read
their samples from files; a turn of PyTorch is one step that does not count, then as many as Partita's,
with the batch in memory. The figure of a turn is the median of its steps, that of a contender the median
of its turns.

Writes records/<date>-steps.md and, with all raw figures, the same name with .json. Without PyTorch it
says so and records Partita alone; where torch.compile fails it says so, too.
"""

import argparse
import contextlib
import importlib.util
import json
import shutil
import sys
import time
from dataclasses import dataclass

import contest
import record_steps_text
from contest import ROOT, Failure, Served, counted, run_partita, say
from runs import Scene, Training, cosmology, segmentation, shapes

PEER = ROOT / "bench" / "peer_steps.py"
WORKSPACES = ("off", "live", "64MiB")


@dataclass(frozen=True)
class Match:
    """A network and the batch of all contenders."""

    scene: Scene
    batch: int
    # Of `partita tune` and of timed steps: long steps take hours otherwise.
    policy: str = "power-of-two"
    steps_max: int = 100

    def steps(self, options):
        return min(options.steps, self.steps_max)


MATCHES = (
    Match(cosmology(128), 1),
    Match(segmentation(64, 3), 1, "undivided", 1),
    Match(shapes("vgg16@224", 16), 4, "undivided", 2),
    Match(shapes("resnet50@224", 24), 4),
    Match(shapes("alexnet@224", 48), 8),
)
# Small ones, to try the script; `--models` names them.
TRIALS = (Match(cosmology(32), 1), Match(shapes("resnet18@64", 24), 4))


@dataclass(frozen=True)
class Setting:
    """What all contenders that take turns have in common."""

    match: Match
    level: str
    threads: int
    # Environment variables that keep PyTorch to the level.
    limits: dict

    @property
    def title(self):
        words = (self.match.scene.model, f"batch {self.match.batch}", self.level)
        return ", ".join((*words, counted(self.threads, "thread")))

    @property
    def launcher(self):
        return ["env", f"PARTITA_VECTORS={self.level}"]


class Partita(Training):
    """A training with so much workspace."""

    def __init__(self, options, folder, setting, workspace):
        strategy = f"data=1,workspace={workspace}"
        match = setting.match
        arguments = (options, folder, match.scene, strategy, match.batch, match.steps(options))
        super().__init__(*arguments, threads=setting.threads, launcher=setting.launcher)
        self.words.append("--no-prediction")
        self.name = f"Partita, workspace={workspace}"
        self.facts |= {"workspace": workspace}

    def turn(self):
        result = self.train()
        kept = {"step_seconds": result["step_seconds_median"], "steps": result["steps_measured"]}
        return kept | {"digest": result["digest"], "memory": result["memory"]}


class Torch(Served):
    """A PyTorch process that waits between its turns."""

    def __init__(self, options, folder, setting, text, layout, compile):
        self.batch, self.count = setting.match.batch, setting.match.steps(options)
        command = [sys.executable, PEER, text, "--batch", self.batch, "--layout", layout]
        command += ["--threads", setting.threads, *(["--compile"] if compile else [])]
        name = f"PyTorch, {layout}" + (", compiled" if compile else "")
        variables = setting.limits | {
            "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{setting.level}"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        start = time.monotonic()
        super().__init__(name, command, setting.threads, variables)
        self.facts |= {"seconds_to_start": time.monotonic() - start}

    def turn(self):
        return self.timed(1, self.count)


PROGRAMS = {Partita: "Partita", Torch: "PyTorch"}


def contenders(options, folder, setting, ways, left_out):
    """All that take turns, started; what does not start is left out with a reason."""
    for workspace in WORKSPACES:
        yield Partita(options, folder, setting, workspace)
    if not ways:
        return
    text = folder / f"{setting.match.scene.model}.txt"
    text.write_text(run_partita(options, folder, ["inspect", setting.match.scene.model, "--text"]))
    for compile in ways:
        for layout in ("default", "channels_last"):
            try:
                yield Torch(options, folder, setting, text, layout, compile)
            except Failure as failure:
                if not compile:
                    raise
                say(f"left out: {failure}")
                left_out.append(str(failure))


def tune(options, folder, setting):
    """Fills the cache; what `tune` says of the steps, and how long it took."""
    words = ["tune", setting.match.scene.model, "--ranks", "1", "--batch", str(setting.match.batch)]
    words += ["--threads", str(setting.threads), "--json"]
    words += ["--policy", options.policy or setting.match.policy]
    words += ["--limits", ",".join(w for w in WORKSPACES if w not in ("off", "live"))]
    start = time.monotonic()
    tuned = json.loads(run_partita(options, folder, words, setting.launcher))
    seconds = time.monotonic() - start
    say(f"{setting.title}: tuned in {seconds:.0f} s")
    kept = {key: tuned[key] for key in ("policy", "simd", "steps")}
    return kept | {"command": " ".join(words), "seconds": seconds}


def measure(options, folder, setting, ways):
    tuned, left_out = tune(options, folder, setting), []
    whole = json.loads(run_partita(options, folder, ["inspect", setting.match.scene.model, "--json"]))
    with contextlib.ExitStack() as stack:
        racers = contest.started(stack, contenders(options, folder, setting, ways, left_out))
        for racer in racers:
            check(racer, setting, whole["parameters"])
        turns = contest.rounds(options.rounds, racers, setting.title)
        entries = [contest.entry(r, PROGRAMS[type(r)], t) for r, t in zip(racers, turns)]
    return {
        "level": setting.level,
        "threads": setting.threads,
        "tuned": tuned,
        "left_out": left_out,
        "contenders": entries,
    }


def check(racer, setting, parameters):
    """That a peer computes the same network at the same level."""
    if isinstance(racer, Torch):
        if racer.facts["parameters"] != parameters:
            raise Failure(f"{racer.name}: {racer.facts['parameters']} parameters instead of {parameters}")
        if setting.limits and racer.facts["instructions"] != setting.level.upper():
            raise Failure(f"{racer.name}: computes with {racer.facts['instructions']}")


def measure_network(options, folder, match, machine, ways):
    match.scene.make(options, folder)
    levels = contest.levels(machine)
    settings = [
        Setting(match, level, threads, contest.limits(machine, level))
        for level in (level for level in levels if level in (options.levels or levels))
        for threads in options.threads
    ]
    measured = [measure(options, folder, setting, ways) for setting in settings]
    shutil.rmtree(folder / match.scene.data)
    return {"model": match.scene.model, "batch": match.batch, "settings": measured}


def record(options, folder):
    ways = [False, *([] if options.no_compile else [True])]
    if importlib.util.find_spec("torch") is None:
        ways = []
        say("This Python lacks PyTorch, which is left out: pip install torch")
    matches = [match for match in MATCHES + TRIALS if match.scene.model in options.models]
    words = ["--steps", options.steps, "--models", *options.models, "--threads", *options.threads]
    words += ["--policy", options.policy] if options.policy else []
    words += ["--levels", *options.levels] if options.levels else []
    words += ["--no-compile"] if options.no_compile else []
    head = contest.head(options, folder, "record_steps.py", words)
    head |= {"steps": options.steps, "with_torch": bool(ways), "with_compile": True in ways}
    machine = head["machine"]
    networks = [measure_network(options, folder, match, machine, ways) for match in matches]
    return head | {"finished": contest.now(), "networks": networks}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    models = [match.scene.model for match in MATCHES]
    trials = [match.scene.model for match in TRIALS]
    parser.add_argument("--models", nargs="+", choices=models + trials, default=models)
    parser.add_argument("--steps", type=contest.whole, default=4, help="timed steps of a turn")
    parser.add_argument("--threads", type=contest.whole, nargs="+", default=[1, 2])
    parser.add_argument("--levels", nargs="+", choices=("avx512", "avx2"), help="default: all")
    policies = ("power-of-two", "all", "undivided")
    by_network = "of `partita tune` (default: undivided where steps are long, else power-of-two)"
    parser.add_argument("--policy", choices=policies, help=by_network)
    parser.add_argument("--no-compile", action="store_true", help="PyTorch without torch.compile")
    contest.take(parser, "steps", record, record_steps_text.write)


if __name__ == "__main__":
    main()
