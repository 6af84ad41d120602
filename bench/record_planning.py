"""Records how long `partita plan` takes, and the best strategies that it finds.

Every model of the zoo is planned at its default size on several numbers of ranks, with as many samples as ranks and
without input time, in one process on one core. The largest numbers of ranks want machines that do not exist: machine
files with more nodes. A plan that takes longer than `--limit` is interrupted, which prints the best so far.

`--before` names a binary of another commit, which plans the same cases.

Writes records/<date>-planning.md and, with all raw figures, the same name with .json.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import contest
import record_planning_text
from contest import ROOT, Failure, say

MACHINES = ("summit", "dgx-h100")
RANKS = (16, 64, 1024, 4096)
# Models on a machine with more nodes.
LARGEST = ("cosmoflow", "resnet50")
LARGEST_RANKS = 131072


def enlarged(folder, machine, ranks):
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


def planned(options, binary, folder, model, machine, ranks, batch):
    """A plan with its times; one that reaches the limit has the best so far."""
    words = ["plan", model, "--ranks", ranks, "--batch", batch, "--machine", machine, "--no-io", "--json"]
    begin = time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in (binary, *words)],
        cwd=folder,
        stdout=(folder / "answer").open("w"),
        stderr=subprocess.DEVNULL,
        preexec_fn=contest.on_cores(contest.own_cores()[:1]),
    )
    finished = True
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        own = contest.processor_seconds_of(process.pid)
        if finished and own > options.limit:
            process.send_signal(signal.SIGINT)
            finished = False
        elif own > 2 * options.limit:
            process.kill()
        time.sleep(0.05)
    record = {
        "finished": finished,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "wall_seconds": time.monotonic() - begin,
        "memory_bytes": usage.ru_maxrss * 1024,
        "code": os.waitstatus_to_exitcode(status),
    }
    text = (folder / "answer").read_text()
    try:
        candidates = json.loads(text) if text else []
    except json.JSONDecodeError as error:
        raise Failure(f"`partita plan {model}` printed no plan: {error}") from error
    fit = [one for one in candidates if "reason" not in one]
    kinds = [one["refusal"] for one in candidates if "refusal" in one]
    record["candidates"] = {"simulated": len(fit)} | {kind: kinds.count(kind) for kind in sorted(set(kinds))}
    if fit:
        record |= {key: fit[0][key] for key in ("strategy", "iteration_seconds", "memory_bytes_max")}
    return record


def models(options, folder):
    """Each model of the zoo with its default size, as listed."""
    lines = contest.run_partita(options, folder, ["models"]).splitlines()
    return [line.split()[0] for line in lines[1:] if "@" in line.split()[0]]


def cases(options, folder):
    names = [name for name in models(options, folder) if not options.only or re.search(options.only, name)]
    for ranks in options.ranks:
        for machine in options.machines:
            for name in names:
                yield name, machine, ranks
    if options.largest:
        for name in names:
            if name.split("@")[0] in LARGEST:
                yield name, options.machines[0], LARGEST_RANKS


def record(options, folder):
    head = contest.head(options, folder, "record_planning.py", [])
    found = []
    for name, machine, ranks in cases(options, folder):
        path, nodes = enlarged(folder, machine, ranks)
        case = {"model": name, "machine": machine, "nodes": nodes, "ranks": ranks, "batch": ranks}
        for key, binary in (("now", options.partita), ("before", options.before)):
            if binary is not None:
                plan = planned(options, binary, folder, name, path, ranks, ranks)
                case[key] = plan
                step = plan.get("iteration_seconds")
                text = "nothing" if step is None else f"{1e3 * step:.2f} ms by `{plan['strategy'][:60]}`"
                say(f"{name}, {ranks} of {machine}, {key}: {plan['processor_seconds']:.1f} s of a core, {text}")
        found.append(case)
    return head | {"finished": contest.now(), "limit": options.limit, "cases": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--before", type=lambda text: Path(text).absolute(), help="binary of another commit")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a core for a plan")
    parser.add_argument("--machines", nargs="+", default=MACHINES)
    parser.add_argument("--ranks", nargs="+", type=contest.whole, default=RANKS)
    parser.add_argument("--only", help="pattern of the names of models")
    parser.add_argument("--largest", action="store_true", help=f"also on {LARGEST_RANKS} ranks")
    contest.take(parser, "planning", record, record_planning_text.write)


if __name__ == "__main__":
    main()
