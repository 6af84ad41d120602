"""Records what tuned kernels bring to whole steps, with micro-batches and without, by workspace.

AlexNet and ResNet-18 at 224 with eight images, CosmoFlow at 128 with one sample. `partita tune` measures
undivided implementations into a cache, and micro-batches of powers of two into a copy of it: so both have
the same times of what is undivided. Then `partita train` runs under each limit of the workspace, from
each of the caches: none (`off`), what the arena leaves free (`live`), limits of each kernel, and limits of
all kernels together. The trainings of a network take turns: all of them once is a round. The figure of a
turn is the median of its steps, of which the first two are left out, that of a training the median of its
turns.

Under a limit of all kernels together an integer programme chooses. How long that takes is shown by
`partita lower` of a deep network, `--programme`, whose kernels `tune` has measured before: the same
command without a limit takes turns with it, so the difference is the choice alone. A lowering is ended
after `--lowering-seconds`, and is then not tried again; nor is there a training under such a limit.

Writes records/<date>-tuning.md and, with all raw figures, the same name with .json.
"""

import argparse
import json
import shutil
import time
from dataclasses import dataclass

import contest
import record_tuning_text
from contest import TooLong, counted, run_partita, say
from runs import Scene, Training, cosmology, shapes

POLICIES = ("undivided", "power-of-two")
LIMITS = ("8MiB", "64MiB", "512MiB")
TOTALS = ("64MiB", "512MiB")
PROGRAMME_BATCH = 2
PROGRAMME_TOTALS = ("64MiB", "256MiB", "1GiB")


@dataclass(frozen=True)
class Match:
    """A network and its batch."""

    scene: Scene
    batch: int


MATCHES = (
    Match(shapes("alexnet@224", 48), 8),
    Match(shapes("resnet18@224", 48), 8),
    Match(cosmology(128), 1),
)
# Small ones, to try the script; `--models` names them.
TRIALS = (Match(cosmology(32), 1), Match(shapes("resnet18@64", 24), 4))


class Tuned(Training):
    """A training with so much workspace, from the cache of a policy."""

    def __init__(self, options, folder, match, policy, workspace):
        strategy = f"data=1,{workspace}"
        arguments = (options, folder, match.scene, strategy, match.batch, options.steps)
        super().__init__(*arguments, threads=options.threads)
        self.words.append("--no-prediction")
        self.name = f"{policy}, {workspace}"
        self.facts |= {"policy": policy, "workspace": workspace}

    def turn(self):
        result = self.train()
        kept = {"step_seconds": result["step_seconds_median"], "steps": result["steps_measured"]}
        return kept | {"digest": result["digest"], "memory": result["memory"]}


def tune(options, folder, model, batch, policy, totals):
    """Fills the cache of a folder; what `tune` answers, and how long it took."""
    words = ["tune", model, "--ranks", "1", "--batch", str(batch), "--threads", str(options.threads)]
    words += ["--policy", policy, "--limits", ",".join(LIMITS), "--json"]
    start = time.monotonic()
    tuned = json.loads(run_partita(options, folder, words))
    seconds = time.monotonic() - start
    say(f"{model}, batch {batch}: tuned ({policy}) in {seconds:.0f} s")
    too_long = []
    for total in totals:
        more = [*words, "--totals", total]
        try:
            again = run_partita(options, folder, more, seconds_max=options.lowering_seconds)
            tuned["steps"].append(json.loads(again)["steps"][-1])
        except TooLong as reason:
            say(f"left out: {reason}")
            too_long.append(total)
    for step in tuned["steps"]:
        step["setting"] = setting(step["workspace"])
    return tuned | {"command": " ".join(words), "seconds": seconds, "too_long": too_long}


def setting(words):
    """That of a strategy; `tune` says `64MiB in all` of a total."""
    limit, total, _ = words.partition(" in all")
    return f"workspace_total={limit}" if total else f"workspace={limit}"


def measure(options, folder, match):
    match.scene.make(options, folder)
    tuned, racers = {}, []
    for policy in POLICIES:
        own = folder / policy
        own.mkdir()
        if tuned:
            shutil.copytree(folder / POLICIES[0] / "cache", own / "cache")
        (own / match.scene.data).symlink_to(folder / match.scene.data)
        tuned[policy] = tune(options, own, match.scene.model, match.batch, policy, TOTALS)
        settings = [step["setting"] for step in tuned[policy]["steps"]]
        # Without a limit the cache does not matter, so there is one such training.
        wanted = [s for s in settings if policy == POLICIES[0] or s != "workspace=off"]
        racers += [Tuned(options, own, match, policy, workspace) for workspace in wanted]
    title = f"{match.scene.model}, {counted(options.threads, 'thread')}"
    turns = contest.rounds(options.rounds, racers, title)
    entries = [contest.entry(racer, "Partita", taken) for racer, taken in zip(racers, turns)]
    for path in (folder / match.scene.data, *(folder / policy for policy in POLICIES)):
        shutil.rmtree(path)
    head = {"model": match.scene.model, "batch": match.batch, "threads": options.threads}
    return head | {"tuned": tuned, "contenders": entries}


class Lowering:
    """A turn is a `partita lower`."""

    def __init__(self, options, folder, model, workspace):
        self.options, self.folder, self.workspace = options, folder, workspace
        words = ["lower", model, "--kernels", "cpu", "--strategy", f"data=1,{workspace}", "--json"]
        self.words = [*words, "--ranks", "1", "--batch", str(PROGRAMME_BATCH)]

    def turn(self):
        """Without seconds where it took too long."""
        start = time.monotonic()
        limit = self.options.lowering_seconds
        try:
            lowered = json.loads(run_partita(self.options, self.folder, self.words, seconds_max=limit))
        except TooLong as reason:
            say(f"{reason}")
            return {"too_long": True}
        seconds = time.monotonic() - start
        say(f"{self.workspace}: lowered in {seconds:.2f} s")
        return {"seconds": seconds} | {key: lowered[key] for key in ("digest", "memory_bytes_max")}


def programme(options, folder):
    """How long a lowering takes with each kind of limit, in turns."""
    own = folder / "programme"
    own.mkdir()
    model, policy = options.programme, options.programme_policy
    single = argparse.Namespace(**vars(options) | {"threads": 1})
    tuned = tune(single, own, model, PROGRAMME_BATCH, policy, ())
    workspaces = ["workspace=off", "workspace=live"]
    workspaces += [f"workspace_total={total}" for total in PROGRAMME_TOTALS]
    lowerings = [Lowering(options, own, model, workspace) for workspace in workspaces]
    turns = [[] for _ in lowerings]
    for _ in range(options.lowerings):
        for lowering, taken in zip(lowerings, turns):
            if not any("too_long" in turn for turn in taken):
                taken.append(contest.watched([], lowering.turn))
    return {
        "model": model,
        "batch": PROGRAMME_BATCH,
        "seconds_max": options.lowering_seconds,
        "tuned": tuned,
        "lowerings": [
            {"workspace": lowering.workspace, "command": " ".join(lowering.words), "turns": taken}
            for lowering, taken in zip(lowerings, turns)
        ],
    }


def record(options, folder):
    words = ["--steps", options.steps, "--models", *options.models, "--threads", options.threads]
    words += ["--programme", options.programme, "--programme-policy", options.programme_policy]
    words += ["--lowerings", options.lowerings, "--lowering-seconds", options.lowering_seconds]
    head = contest.head(options, folder, "record_tuning.py", words)
    head |= {"steps": options.steps}
    matches = [match for match in MATCHES + TRIALS if match.scene.model in options.models]
    networks = [measure(options, folder, match) for match in matches]
    deep = None if options.programme == "none" else programme(options, folder)
    return head | {"networks": networks, "programme": deep, "finished": contest.now()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    models = [match.scene.model for match in MATCHES]
    trials = [match.scene.model for match in TRIALS]
    parser.add_argument("--models", nargs="+", choices=models + trials, default=models)
    parser.add_argument("--steps", type=contest.whole, default=8, help="timed steps of a turn")
    parser.add_argument("--threads", type=contest.whole, default=1)
    parser.add_argument("--programme", default="resnet152@224", help="deep network, or `none`")
    parser.add_argument("--programme-policy", choices=POLICIES, default=POLICIES[1])
    parser.add_argument("--lowerings", type=contest.whole, default=10, help="of each kind")
    limit = {"type": float, "default": 60.0, "help": "after which a lowering is ended"}
    parser.add_argument("--lowering-seconds", **limit)
    contest.take(parser, "tuning", record, record_tuning_text.write)


if __name__ == "__main__":
    main()
