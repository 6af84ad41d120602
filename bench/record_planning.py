"""Records how long `partita plan` takes, and the best strategies that it finds.

Every model of the zoo is planned at its default size on several numbers of ranks, with as many samples as ranks or
those of `--samples`, and without input time, in one process on one core. `--models` names other ones, or other sizes.
The largest numbers of ranks want machines that do not exist: machine files with more nodes. A plan that takes longer
than `--limit` is interrupted, which prints the best so far. `--before` names a binary of another commit, which plans
the same cases.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Iterator

from page import head, quoted, shortened, table, values_of
from runner import ROOT, Bench, Failure, Record, absolute, numbers, on_cores, own_cores, processor_seconds_of, say

# Models on a machine with more nodes, and their ranks.
LARGEST, LARGEST_RANKS = ("cosmoflow", "resnet50"), 131072


def enlarged(folder: Path, machine: str, ranks: int) -> tuple[Path | str, int]:
    """A machine file with nodes for so many ranks; their number is assumed."""
    text = (ROOT / "machines" / f"{machine}.toml").read_text()
    each = int(re.search(r"^devices_per_node = \{ value = (\d+)", text, re.M)[1])
    have = int(re.search(r"^nodes = \{ value = (\d+)", text, re.M)[1])
    if have * each >= ranks:
        return machine, have
    nodes = -(-ranks // each)
    line = f'nodes = {{ value = {nodes}, basis = "assumed", source = "as many as the record needs" }}'
    path = folder / f"{machine}-{nodes}.toml"
    path.write_text(re.sub(r"^nodes = .*$", line, text, flags=re.M))
    return path, nodes


def limited(bench: Bench, command: list, limit: float) -> dict:
    """What a command takes, which writes into the file `answer`; interrupted after `limit` seconds of a core."""
    begin, finished = time.monotonic(), True
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=bench.folder,
        stdout=(bench.folder / "answer").open("w"),
        stderr=subprocess.DEVNULL,
        preexec_fn=on_cores(own_cores()[:1]),
    )
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        own = processor_seconds_of(process.pid)
        if finished and own > limit:
            process.send_signal(signal.SIGINT)
            finished = False
        elif own > 2 * limit:
            process.kill()
        time.sleep(0.05)
    _, status, usage = ended
    return {
        "finished": finished,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "wall_seconds": time.monotonic() - begin,
        "memory_bytes": usage.ru_maxrss * 1024,
        "code": os.waitstatus_to_exitcode(status),
    }


def planned(bench: Bench, binary: Path, case: dict, machine: Path | str) -> dict:
    """A plan with its times; one that reaches the limit has the best so far."""
    model = case["model"]
    numbers = ["--ranks", case["ranks"], "--batch", case["batch"]]
    words = ["plan", model, *numbers, "--machine", machine, "--no-io", "--json"]
    plan = limited(bench, [binary, *words], bench.options.limit)
    try:
        candidates = json.loads((bench.folder / "answer").read_text() or "[]")
    except json.JSONDecodeError as error:
        raise Failure(f"`partita plan {model}` printed no plan: {error}") from error
    fit = [one for one in candidates if "reason" not in one]
    kinds = sorted(one["refusal"] for one in candidates if "refusal" in one)
    plan["candidates"] = {"simulated": len(fit)} | {kind: kinds.count(kind) for kind in kinds}
    if fit:
        plan |= {key: fit[0][key] for key in ("strategy", "iteration_seconds", "memory_bytes_max")}
    return plan


def cases(bench: Bench) -> Iterator[tuple[str, str, int]]:
    """Each model of the zoo with its default size, as listed, or those that were asked for."""
    options = bench.options
    listed = options.models or [line.split()[0] for line in bench.run("models").splitlines()[1:]]
    names = [name for name in listed if "@" in name and (not options.only or re.search(options.only, name))]
    yield from ((name, machine, ranks) for ranks in options.ranks for machine in options.machines for name in names)
    if options.largest:
        largest = (name for name in names if name.split("@")[0] in LARGEST)
        yield from ((name, options.machines[0], LARGEST_RANKS) for name in largest)


def measure(bench: Bench) -> dict:
    found = []
    for name, machine, ranks in cases(bench):
        path, nodes = enlarged(bench.folder, machine, ranks)
        samples = bench.options.samples or ranks
        case = {"model": name, "machine": machine, "nodes": nodes, "ranks": ranks, "batch": samples}
        for key, binary in (("now", bench.partita), ("before", bench.options.before)):
            if binary is not None:
                plan = case[key] = planned(bench, binary, case, path)
                text = f"{step(plan)} by `{plan.get('strategy', '')[:60]}`"
                say(f"{name}, {ranks} of {machine}, {key}: {plan['processor_seconds']:.1f} s of a core, {text}")
        found.append(case)
    return {"limit": bench.options.limit, "cases": found}


def page(record: dict, raw: str):
    done = [case["now"] for case in record["cases"]]
    times = [one["processor_seconds"] for one in done if one["finished"]]
    samples = {case["batch"] for case in record["cases"] if case["batch"] != case["ranks"]}
    samples = f"{min(samples)} sample(s) a step" if samples else "as many samples as ranks"
    yield head(record, "How long a plan takes", f"""\
Seconds of one core (user and system) that `partita plan --no-io` takes, with {samples}, and
the step of the best strategy, which is predicted, not run. The machine was shared with other work, so the wall
time, in the raw data, is longer. A plan that took more than {record['limit']:.0f} s was interrupted (`>`), and has the\
 best so far.
Of {len(done)} plans {len(times)} ended by themselves; the longest of these took {max(times, default=0):.1f} s.
Raw data: `{raw}`.""")
    for ranks in values_of(record["cases"], "ranks"):
        some = [case for case in record["cases"] if case["ranks"] == ranks]
        compared = any("before" in case for case in some)
        before = " | before, s> | best step before>" if compared else ""
        columns = f"model | machine | time, s>{before} | best step> | simulated> | strategy"
        yield f"## {ranks} ranks\n\n" + table(columns, (row(case, compared) for case in some))


def row(case: dict, compared: bool) -> list:
    now, was = case["now"], case.get("before")
    before = ([seconds(was), step(was)] if was else ["", ""]) if compared else []
    strategy = quoted(shortened(now.get("strategy", "")))
    simulated = now["candidates"]["simulated"]
    return [case["model"], case["machine"], seconds(now), *before, step(now), simulated, strategy]


def seconds(plan: dict) -> str:
    return f"{'' if plan['finished'] else '> '}{plan['processor_seconds']:.1f}"


def step(plan: dict) -> str:
    return f"{1e3 * plan['iteration_seconds']:.2f} ms" if "iteration_seconds" in plan else "none"


OPTIONS = {
    "--before": {"type": absolute, "help": "binary of another commit"},
    "--limit": {"type": float, "default": 60.0, "help": "seconds of a core for a plan"},
    "--machines": {"nargs": "+", "default": ("summit", "dgx-h100")},
    "--ranks": numbers(16, 64, 1024, 4096),
    "--models": {"nargs": "+", "help": "names of models, of any size (default: those of the zoo)"},
    "--samples": {"type": int, "help": "samples of a step (default: as many as ranks)"},
    "--only": {"help": "pattern of the names of models"},
    "--largest": {"action": "store_true", "help": f"also on {LARGEST_RANKS} ranks"},
}

if __name__ == "__main__":
    Record("planning", measure, page, OPTIONS).take()
