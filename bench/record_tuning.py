"""Records what tuned kernels bring to whole steps, with micro-batches and without, by workspace.

`partita tune` measures undivided implementations into a cache, and micro-batches of powers of two into a copy of it:
so both have the same times of what is undivided. Then `partita train` runs under each limit of the workspace, from
each of the caches: none (`off`), what the arena leaves free (`live`), limits of each kernel, and limits of all kernels
together.

Under a limit of all kernels together an integer programme chooses. How long that takes is shown by `partita lower` of
a deep network, `--programme`, whose kernels `tune` has measured before: the same command without a limit takes turns
with it, so the difference is the choice alone. A lowering is ended after `--lowering-seconds`, and is then not tried
again; nor is there a training under such a limit.
"""

import shutil
import time
from collections import Counter
from statistics import median

from page import MEBIBYTE, disturbance, head, percent, ratio, resident, spread, step_seconds, table, times
from runner import Bench, Record, TooLong, counted, number, race, say, some, watched
from trainings import Scene, Training, cosmology, figures_with_memory, shapes

POLICIES = ("undivided", "power-of-two")
LIMITS = ("8MiB", "64MiB", "512MiB")
TOTALS = ("64MiB", "512MiB")
PROGRAMME_BATCH, PROGRAMME_TOTALS = 2, ("64MiB", "256MiB", "1GiB")
MATCHES = ((shapes("alexnet@224", 48), 8), (shapes("resnet18@224", 48), 8), (cosmology(128), 1))
# Small ones, to try the script; `--models` names them.
TRIALS = ((cosmology(32), 1), (shapes("resnet18@64", 24), 4))
MODELS = [scene.model for scene, _ in MATCHES]


def tune(bench: Bench, model: str, batch: int, threads: int, policy: str, totals: tuple) -> dict:
    """Fills the cache of a folder; what `tune` answers, and how long it took."""
    words = ["tune", model, "--ranks", 1, "--batch", batch, "--threads", threads, "--policy", policy]
    words += ["--limits", ",".join(LIMITS)]
    start = time.monotonic()
    tuned = bench.json(*words)
    seconds = time.monotonic() - start
    say(f"{model}, batch {batch}: tuned ({policy}) in {seconds:.0f} s")
    too_long = []
    for total in totals:
        try:
            again = bench.json(*words, "--totals", total, seconds_max=bench.options.lowering_seconds)
            tuned["steps"].append(again["steps"][-1])
        except TooLong as reason:
            say(f"left out: {reason}")
            too_long.append(total)
    for step in tuned["steps"]:
        # `tune` says `64MiB in all` of a total.
        limit, total, _ = step["workspace"].partition(" in all")
        step["setting"] = f"workspace_total={limit}" if total else f"workspace={limit}"
    return tuned | {"command": " ".join(map(str, words)), "seconds": seconds, "too_long": too_long}


def measure_network(bench: Bench, scene: Scene, batch: int) -> dict:
    scene.make(bench)
    threads, tuned, racers = bench.options.threads, {}, []
    for policy in POLICIES:
        own = bench.inside(policy)
        if tuned:
            shutil.copytree(bench.folder / POLICIES[0] / "cache", own.folder / "cache")
        (own.folder / scene.data).symlink_to(bench.folder / scene.data)
        tuned[policy] = tune(own, scene.model, batch, threads, policy, TOTALS)
        for workspace in (step["setting"] for step in tuned[policy]["steps"]):
            # Without a limit the cache does not matter, so there is one such training.
            if policy == POLICIES[0] or workspace != "workspace=off":
                how = {"threads": threads, "words": ["--no-prediction"], "figures": figures_with_memory}
                how |= {"name": f"{policy}, {workspace}", "policy": policy, "workspace": workspace}
                racers.append(Training(own, scene, f"data=1,{workspace}", batch, bench.options.steps, **how))
    entries = race(bench, racers, f"{scene.model}, {counted(threads, 'thread')}")
    for name in (scene.data, *POLICIES):
        shutil.rmtree(bench.folder / name)
    return {"model": scene.model, "batch": batch, "threads": threads, "tuned": tuned, "contenders": entries}


def lowered(bench: Bench, words: list) -> dict:
    """A turn is a `partita lower`; without seconds where it took too long."""
    start = time.monotonic()
    try:
        answer = bench.json(*words, seconds_max=bench.options.lowering_seconds)
    except TooLong as reason:
        say(f"{reason}")
        return {"too_long": True}
    seconds = time.monotonic() - start
    say(f"{words[-1]}: lowered in {seconds:.2f} s")
    return {"seconds": seconds} | {key: answer[key] for key in ("digest", "memory_bytes_max")}


def programme(bench: Bench) -> dict:
    """How long a lowering takes with each kind of limit, in turns."""
    options, own, lowerings = bench.options, bench.inside("programme"), []
    tuned = tune(own, options.programme, PROGRAMME_BATCH, 1, options.programme_policy, ())
    totals = (f"workspace_total={total}" for total in PROGRAMME_TOTALS)
    base = ["lower", options.programme, "--kernels", "cpu", "--ranks", 1, "--batch", PROGRAMME_BATCH]
    for workspace in ("workspace=off", "workspace=live", *totals):
        words = [*base, "--strategy", f"data=1,{workspace}"]
        lowerings.append({"workspace": workspace, "command": " ".join(map(str, words)), "words": words, "turns": []})
    for _ in range(options.lowerings):
        for one in lowerings:
            if not any("too_long" in turn for turn in one["turns"]):
                one["turns"].append(watched([], lambda: lowered(own, one["words"])))
    lowerings = [{key: value for key, value in one.items() if key != "words"} for one in lowerings]
    facts = {"model": options.programme, "batch": PROGRAMME_BATCH, "seconds_max": options.lowering_seconds}
    return facts | {"tuned": tuned, "lowerings": lowerings}


def measure(bench: Bench) -> dict:
    options = bench.options
    networks = [measure_network(bench, *match) for match in MATCHES + TRIALS if match[0].model in options.models]
    deep = None if options.programme == "none" else programme(bench)
    return {"steps": options.steps, "networks": networks, "programme": deep}


def page(record: dict, raw: str):
    yield head(record, "Tuned kernels", f"""\
Seconds of a training step (forward, backward, Adam; float32) on one rank under limits of the workspace of\
 convolutions, with what `partita tune` measured: undivided implementations alone, or, into a copy of that\
 cache, micro-batches of powers of two besides. All take turns, {record['rounds']} round(s), at least\
 {record['steps']} steps a turn; shown is the median of the turns, [least .. most]. Predicted is what `tune` says of\
 the step, without input. Raw data: `{raw}`.""")
    yield disturbance(record)
    for network in record["networks"]:
        yield from parts(network)
    if record["programme"]:
        yield programme_table(record["programme"])


def parts(network: dict):
    some_tuned = next(iter(network["tuned"].values()))
    seconds = ", ".join(f"{policy} in {tuned['seconds']:.0f} s" for policy, tuned in network["tuned"].items())
    yield f"## {network['model']}, batch {network['batch']}, {network['threads']} thread(s)"
    yield f"{some_tuned['simd']}, {len(some_tuned['kernels'])} convolutions in the step. Tuned: {seconds}."
    for policy, tuned in network["tuned"].items():
        for total in tuned["too_long"]:
            yield f"Left out: `workspace_total={total}` ({policy}), which took too long to lower."
    columns = "measured kernels | limit | predicted, s> | measured, s> | accuracy> | predicted gain> | measured gain>"
    yield f"""\
Gain is over `workspace=off`: its time by that of the row, less one. Accuracy is 1 - |predicted - measured| /\
 measured. Workspace is the largest of a kernel; memory is that of the rank as predicted by `tune`, and the\
 largest resident set that was measured.

{table(columns + " | workspace, MiB> | memory, MiB> | measured, MiB>", steps(network))}"""
    yield f"""\
What micro-batches gain over undivided kernels under the same limit; where both are the same program the\
 measured gain is noise:

{table("limit | predicted gain> | measured gain> | programs", gains(network))}"""
    lines = []
    for policy, tuned in network["tuned"].items():
        counts = Counter(kernel["choice"]["configuration"] for kernel in tuned["kernels"] if kernel["choice"])
        lines.append(f"- {policy}: " + ", ".join(f"`{name}` {count}" for name, count in counts.most_common()))
    yield "Convolutions by what `workspace=live` pins:\n\n" + "\n".join(lines)


def predicted(network: dict, policy: str, workspace: str) -> dict:
    """What `tune` says of a step."""
    return next(step for step in network["tuned"][policy]["steps"] if step["setting"] == workspace)


def gain(other: dict, own: dict) -> str:
    return ratio(other, own, percent, 1)


def steps(network: dict):
    off = next(one for one in network["contenders"] if one["facts"]["workspace"] == "workspace=off")
    for one in network["contenders"]:
        policy, workspace, measured = one["facts"]["policy"], one["facts"]["workspace"], step_seconds(one)
        step, base = (predicted(network, policy, limit) for limit in (workspace, "workspace=off"))
        seconds = step["step_seconds"]
        shares = [1 - abs(seconds - measured) / measured, base["step_seconds"] / seconds - 1]
        memory = (f"{step[key] / MEBIBYTE:.1f}" for key in ("workspace_bytes_max", "memory_bytes"))
        cells = [policy if one is not off else "none", f"`{workspace}`", f"{seconds:.4f}", spread(times(one))]
        yield [*cells, *map(percent, shares), gain(off, one), *memory, resident(one)]


def gains(network: dict):
    found: dict[str, dict] = {policy: {} for policy in POLICIES}
    for one in network["contenders"]:
        found[one["facts"]["policy"]][one["facts"]["workspace"]] = one
    whole, micro = found.values()
    for workspace in (workspace for workspace in micro if workspace in whole):
        pair = [some_of[workspace] for some_of in (whole, micro)]
        before, after = (predicted(network, policy, workspace)["step_seconds"] for policy in POLICIES)
        first, second = ({turn["digest"] for turn in one["turns"]} for one in pair)
        yield [f"`{workspace}`", percent(before / after - 1), gain(*pair), "the same" if first == second else "differ"]


def programme_table(deep: dict) -> str:
    tuned, lowerings = deep["tuned"], deep["lowerings"]
    points = [len(kernel["frontier"]) for kernel in tuned["kernels"]]
    return f"""\
## The integer programme of {deep['model']}, batch {deep['batch']}

`partita lower` with each limit, in turns, {len(lowerings[0]['turns'])} of each; the difference to `workspace=off` is\
 the choice. {len(points)} convolutions with {sum(points)} configurations worth having, at most\
 {max(points)} each ({tuned['policy']}), measured by `tune` in {tuned['seconds']:.0f} s. A lowering was ended\
 after {deep['seconds_max']:.0f} s.

{table("limit | seconds> | more than off> | memory, MiB> | program", programme_rows(deep))}"""


def programme_rows(deep: dict):
    names: dict[str, str] = {}
    base = median(turn["seconds"] for turn in deep["lowerings"][0]["turns"])
    for one in deep["lowerings"]:
        limit, seconds = f"`{one['workspace']}`", [turn["seconds"] for turn in one["turns"] if "seconds" in turn]
        if len(seconds) < len(one["turns"]):
            yield [limit, f"more than {deep['seconds_max']:.0f}", "-", "-", "-"]
            continue
        first = one["turns"][0]
        # Where nothing can be chosen the program is that of an earlier row.
        same = names.setdefault(first["digest"], limit)
        memory, told = f"{first['memory_bytes_max'] / MEBIBYTE:.1f}", "its own" if same == limit else f"that of {same}"
        yield [limit, spread(seconds, 3), f"{median(seconds) - base:.3f}", memory, told]


OPTIONS = {
    "--steps": number(8, "timed steps of a turn"),
    "--models": some(MODELS + [scene.model for scene, _ in TRIALS], MODELS),
    "--threads": number(1),
    "--programme": {"default": "resnet152@224", "help": "deep network, or `none`"},
    "--programme-policy": {"choices": POLICIES, "default": POLICIES[1]},
    "--lowerings": number(10, "of each kind"),
    "--lowering-seconds": {"type": float, "default": 60.0, "help": "after which a lowering is ended"},
}

if __name__ == "__main__":
    Record("tuning", measure, page, OPTIONS).take()
