"""Records training steps of five networks, tuned and untuned, beside PyTorch's best configuration.

With one thread and with two, at the highest instruction level of the processor and at AVX2. For each of these
`partita tune` measures first, into the cache of this record; for 3D U-Net and VGG16, whose steps are long, without
micro-batches. Partita then trains with `workspace=off` (untuned), `live` and `64MiB`. PyTorch computes what
`partita inspect MODEL --text` prints, in both of its memory layouts, with torch.compile and without; its batch is in
memory, while Partita reads its samples from files. Where torch.compile fails the record says so.
"""

import shutil
import time
from dataclasses import dataclass
from typing import Iterator

from page import disturbance, head, of, ratio, resident, spread, step_seconds, table, times
from runner import LEVELS, Bench, Contender, Failure, Record, counted, number, numbers, race, say, some
from trainings import (
    LAYOUTS, Scene, Served, Training, check_parameters, cosmology, figures_with_memory, has, model_text, peer,
    segmentation, shapes,
)

WORKSPACES = ("off", "live", "64MiB")
# Of `partita tune`.
POLICIES = ("power-of-two", "all", "undivided")
# Scene, batch of all contenders, policy, and how many steps are timed at most: long steps take hours otherwise.
MATCHES = (
    (cosmology(128), 1, "power-of-two", 100),
    (segmentation(64, 3), 1, "undivided", 1),
    (shapes("vgg16@224", 16), 4, "undivided", 2),
    (shapes("resnet50@224", 24), 4, "power-of-two", 100),
    (shapes("alexnet@224", 48), 8, "power-of-two", 100),
)
# Small ones, to try the script; `--models` names them.
TRIALS = ((cosmology(32), 1, "power-of-two", 100), (shapes("resnet18@64", 24), 4, "power-of-two", 100))
MODELS = [scene.model for scene, *_ in MATCHES]


@dataclass(frozen=True)
class Setting:
    """What all contenders that take turns have in common."""

    scene: Scene
    batch: int
    policy: str
    steps: int
    level: str
    threads: int

    @property
    def title(self) -> str:
        return f"{self.scene.model}, batch {self.batch}, {self.level}, {counted(self.threads, 'thread')}"

    @property
    def launcher(self) -> tuple:
        return ("env", f"PARTITA_VECTORS={self.level}")


def contenders(bench: Bench, setting: Setting, ways: list[bool], left_out: list[str]) -> Iterator[Contender]:
    """All that take turns, started; what does not start is left out with a reason."""
    how = {"threads": setting.threads, "launcher": setting.launcher, "words": ["--no-prediction"]}
    for workspace in WORKSPACES:
        how |= {"name": f"Partita, workspace={workspace}", "workspace": workspace, "figures": figures_with_memory}
        strategy = f"data=1,workspace={workspace}"
        yield Training(bench, setting.scene, strategy, setting.batch, setting.steps, **how)
    if ways:
        text = model_text(bench, setting.scene.model)
    for compiled, layout in ((compiled, layout) for compiled in ways for layout in LAYOUTS):
        command = peer("peer_torch.py", text, "--batch", setting.batch, "--layout", layout)
        command += ["--threads", setting.threads, *(["--compile"] if compiled else [])]
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(bench.folder / f"inductor-{setting.level}")}
        variables = bench.limits(setting.level) | cache | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        name = f"PyTorch, {layout}" + (", compiled" if compiled else "")
        try:
            yield Served(name, command, setting.threads, variables, batch=setting.batch, steps=setting.steps)
        except Failure as failure:
            if not compiled:
                raise
            say(f"left out: {failure}")
            left_out.append(str(failure))


def tune(bench: Bench, setting: Setting) -> dict:
    """Fills the cache; what `tune` says of the steps, and how long it took."""
    words = ["tune", setting.scene.model, "--ranks", 1, "--batch", setting.batch, "--threads", setting.threads]
    words += ["--policy", bench.options.policy or setting.policy, "--limits", "64MiB"]
    start = time.monotonic()
    tuned = bench.json(*words, launcher=setting.launcher)
    seconds = time.monotonic() - start
    say(f"{setting.title}: tuned in {seconds:.0f} s")
    kept = {key: tuned[key] for key in ("policy", "simd", "steps")}
    return kept | {"command": " ".join(map(str, words)), "seconds": seconds}


def measure_setting(bench: Bench, setting: Setting, ways: list[bool]) -> dict:
    tuned, left_out = tune(bench, setting), []
    parameters = bench.json("inspect", setting.scene.model)["parameters"]

    def check(racer: Contender) -> None:
        """That a peer computes the same network at the same level."""
        check_parameters(racer, parameters)
        own = racer.facts.get("instructions", setting.level.upper())
        if bench.limits(setting.level) and own != setting.level.upper():
            raise Failure(f"{racer.name}: computes with {own}")

    racers = contenders(bench, setting, ways, left_out)
    facts = {"level": setting.level, "threads": setting.threads, "tuned": tuned, "left_out": left_out}
    return facts | {"contenders": race(bench, racers, setting.title, check=check)}


def measure_network(bench: Bench, ways: list[bool], scene: Scene, batch: int, policy: str, steps_max: int) -> dict:
    scene.make(bench)
    match = (scene, batch, policy, min(bench.options.steps, steps_max))
    settings = [Setting(*match, level, threads) for level in bench.levels for threads in bench.options.threads]
    measured = [measure_setting(bench, setting, ways) for setting in settings]
    shutil.rmtree(bench.folder / scene.data)
    return {"model": scene.model, "batch": batch, "settings": measured}


def measure(bench: Bench) -> dict:
    options = bench.options
    ways = ([False] if options.no_compile else [False, True]) if has("torch") else []
    facts = {"steps": options.steps, "with_torch": bool(ways), "with_compile": True in ways}
    wanted = [match for match in MATCHES + TRIALS if match[0].model in options.models]
    return facts | {"networks": [measure_network(bench, ways, *match) for match in wanted]}


def page(record: dict, raw: str):
    settings = [(network, setting) for network in record["networks"] for setting in network["settings"]]
    peers = (peer["facts"]["version"] for _, setting in settings for peer in of("PyTorch", setting["contenders"]))
    version = next((f"PyTorch {version}" for version in peers), "**without PyTorch**")
    plain = record["with_torch"] and not record["with_compile"]
    yield head(record, "Tuned training steps beside PyTorch", f"""\
Seconds of a training step (forward, backward, Adam; float32) of one process, all contenders in turns\
 on the same cores: {record['rounds']} round(s), {record['steps']} steps a turn (of long ones fewer). Shown is\
 the median of the turns, [least .. most]. `workspace=off` is untuned; before the others train,\
 `partita tune` has measured. At AVX2, environment variables keep PyTorch and its libraries to that\
 level. A step of Partita includes reading its samples from files; PyTorch's batch is in memory.\
 Raw data: `{raw}`.""", version, ["**torch.compile was not asked for.**"] if plain else [])
    yield disturbance(record)
    columns = "network | batch> | level | threads> | untuned> | live> | 64 MiB> | PyTorch's best, s> | which"
    columns += " | untuned / PyTorch> | live / PyTorch> | live / untuned>"
    yield f"""\
Seconds of a step, and how many times the speed of PyTorch's fastest configuration that is.

{table(columns, (summary(network, setting) for network, setting in settings))}"""
    for network in record["networks"]:
        yield f"## {network['model']}, batch {network['batch']}"
        for setting in network["settings"]:
            yield from details(setting)


def with_workspace(setting: dict, workspace: str) -> dict:
    return next(one for one in of("Partita", setting["contenders"]) if one["facts"]["workspace"] == workspace)


def rival(setting: dict) -> dict | None:
    return min(of("PyTorch", setting["contenders"]), key=step_seconds, default=None)


def summary(network: dict, setting: dict) -> list:
    own, best = [with_workspace(setting, workspace) for workspace in WORKSPACES], rival(setting)
    facts = [network["model"], network["batch"], setting["level"], setting["threads"]]
    theirs = [f"{step_seconds(best):.4f}", best["name"]] if best else ["-", "-"]
    ratios = [ratio(best, own[0]), ratio(best, own[1]), ratio(own[0], own[1])]
    return [*facts, *(f"{step_seconds(one):.4f}" for one in own), *theirs, *ratios]


def details(setting: dict) -> Iterator[str]:
    off, tuned = with_workspace(setting, "off"), setting["tuned"]
    rows = (row(setting, one, off) for one in setting["contenders"])
    yield (
        f"{setting['level']}, {setting['threads']} thread(s); tuned ({tuned['policy']}) in {tuned['seconds']:.0f} s."
        " Predicted is what `tune` says, without input; memory is the measured resident set."
    )
    yield table("who | seconds a step> | predicted> | times untuned> | times PyTorch's best> | memory, MiB>", rows)
    same = {turn["digest"] for turn in off["turns"]}
    for one in of("Partita", setting["contenders"]):
        if one is not off and {turn["digest"] for turn in one["turns"]} == same:
            yield f"{one['name']} is the same program as untuned: nothing gains."
    yield from (f"Left out: {reason}" for reason in setting["left_out"])


def row(setting: dict, one: dict, off: dict) -> list:
    cells = [one["name"], spread(times(one))]
    if one["program"] != "Partita":
        return [*cells, "", "", "", ""]
    predicted = {step["workspace"]: f"{step['step_seconds']:.4f}" for step in setting["tuned"]["steps"]}
    ratios = [ratio(off, one), ratio(rival(setting), one)]
    return [*cells, predicted.get(one["facts"]["workspace"], "-"), *ratios, resident(one)]


OPTIONS = {
    "--steps": number(4, "timed steps of a turn"),
    "--models": some(MODELS + [scene.model for scene, *_ in TRIALS], MODELS),
    "--threads": numbers(1, 2),
    "--policy": {"choices": POLICIES, "help": "of `partita tune` (default: undivided where steps are long)"},
    "--levels": some(LEVELS["AVX-512"]) | {"help": "default: all"},
    "--no-compile": {"action": "store_true", "help": "PyTorch without torch.compile"},
}

if __name__ == "__main__":
    Record("steps", measure, page, OPTIONS).take()
