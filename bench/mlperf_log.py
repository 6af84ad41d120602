#!/usr/bin/env python3
"""Turns the logs of MLPerf results into rows of published/mlperf-*.toml.

Usage: mlperf_log.py FOLDER...
       mlperf_log.py --check CHECKOUTS

Each FOLDER holds the `result_*.txt` of one submission, in a checkout of a public repository of results
(mlcommons/hpc_results_v* or mlcommons/training_results_v*). The time of an epoch
is the median over the epochs after the first, from `epoch_start` to the next `eval_start` or `epoch_stop`,
whichever is first (or the mean of a block of epochs, from `block_start`); so evaluation does not count, and
reading does. The rate is train_samples over that time. Printed per folder: ranks and mini-batch, the median rate of its logs, the
span of the rates in percent, and how many logs there were.

--check compares the rows of published/mlperf-*.toml with their logs. CHECKOUTS holds the repositories under
their names (hpc_results_v1.0, ...).
"""

import glob
import json
import os
import statistics
import sys
import tomllib
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parent.parent / "published"


def events(path):
    """The entries of a log, in order. Lines of other programs are skipped."""
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            start = line.find("{")
            if ":::MLL" not in line or start < 0:
                continue
            try:
                yield json.loads(line[start:])
            except json.JSONDecodeError:
                continue


def epochs(entries):
    """Seconds of training of each epoch; of blocks of several epochs, the mean of each block.

    Where a log has blocks, they count: evaluation comes after them, and the marks between their epochs are
    set by a host that runs ahead of its devices.
    """
    blocks = any(entry["key"] == "block_start" for entry in entries)
    opens, closes = ("block_start", ("eval_start", "block_stop")) if blocks else (
        "epoch_start", ("eval_start", "epoch_stop"))
    start, count, seconds = None, 1, []
    for entry in entries:
        if entry["key"] == opens:
            start = entry["time_ms"]
            count = int(entry["metadata"].get("epoch_count", 1)) if blocks else 1
        elif entry["key"] in closes and start is not None:
            seconds.append((entry["time_ms"] - start) / 1e3 / count)
            start = None
    return seconds


def read(path):
    """Mini-batch, ranks if said, and samples per second of a log; none if it has too few epochs."""
    entries = list(events(path))
    values = {entry["key"]: entry["value"] for entry in entries}
    seconds = epochs(entries)[1:]
    if not seconds or "train_samples" not in values or "global_batch_size" not in values:
        return None
    nodes, per_node = values.get("number_of_nodes"), values.get("accelerators_per_node")
    return {
        "batch": int(values["global_batch_size"]),
        "ranks": int(nodes) * int(per_node) if nodes and per_node else None,
        "rate": int(values["train_samples"]) / statistics.median(seconds),
    }


def ranks_of_system(folder):
    """Accelerators, or nodes where a system has none, from the description of the system."""
    above, after = folder.rstrip("/").split("/results/")
    with open(os.path.join(above, "systems", after.split("/")[0] + ".json"), encoding="utf-8") as text:
        system = json.load(text)
    nodes = system.get("number_of_nodes", system.get("number of nodes"))
    per_node = str(system.get("accelerators_per_node") or 0)
    if nodes is None:
        return None
    return int(nodes) * (int(per_node) if per_node.isdigit() and int(per_node) else 1)


def row(folder):
    """What the logs of a folder say together, if any has an epoch that counts."""
    logs = [read(path) for path in sorted(glob.glob(os.path.join(folder, "result_*.txt")))]
    logs = [log for log in logs if log]
    if not logs:
        return None
    rates = [log["rate"] for log in logs]
    middle = statistics.median(rates)
    said = sorted({log["ranks"] for log in logs if log["ranks"]})
    return {
        "ranks": said[0] if said else ranks_of_system(folder),
        "batch": min(log["batch"] for log in logs),
        "samples_per_second": middle,
        "span": (max(rates) - min(rates)) / middle,
        "logs": len(logs),
    }


def check(checkouts):
    """Rows of the tables that differ from their logs."""
    wrong = count = 0
    for path in sorted(PUBLISHED.glob("mlperf-*.toml")):
        for kept in tomllib.loads(path.read_text())["rows"]:
            found = row(os.path.join(checkouts, kept["source"]))
            count += 1
            sizes = found and all(found[key] == kept[key] for key in ("ranks", "batch"))
            if not sizes or abs(found["samples_per_second"] / kept["samples_per_second"] - 1) > 1e-3:
                wrong += 1
                print(f"{kept['source']}: {kept} but {found}")
    print(f"{count - wrong} of {count} rows are as their logs")
    return wrong


def main():
    if sys.argv[1:2] == ["--check"]:
        sys.exit(1 if check(sys.argv[2]) else 0)
    for folder in sys.argv[1:]:
        found = row(folder)
        print(f"# {folder}")
        if not found:
            print("# no log with two epochs or blocks")
            continue
        for key in ("batch", "ranks"):
            print(f"{key} = {found[key]}")
        print(f"samples_per_second = {found['samples_per_second']:.1f}"
              f" # span {100 * found['span']:.1f} % of {found['logs']} logs")


if __name__ == "__main__":
    main()
