"""What a step would take if each of its tasks ran at the machine's peak or at the rate of its memory.

The flops and bytes are those that the program counts: each view of a task read and written once. But a gradient of data
is counted with the zero frame of its operand, where nothing needs to be computed: here it has no more flops than the
same layer forward.
"""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Callable, Iterator

from page import step_seconds, table

# Of these a table shows the first.
SHOWN = 12


def tasks(output: Path) -> list[dict]:
    """The kernels of a run: what the program counts, what was predicted, and what the trace shows."""
    prediction, trace = (json.loads((output / name).read_text()) for name in ("prediction.json", "trace.json"))
    seconds = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            seconds[event["pid"], event["args"]["task"]].append(event["dur"] * 1e-6)
    ranks = ranks_by_class(trace["program"])
    rows = []
    for task in prediction["tasks"]:
        if task["bytes"]:
            own = [median(seconds[rank, task["task"]]) for rank in ranks[task["class"]]]
            rows.append(task | {"measured_seconds": mean(own)})
    return with_needed_flops(rows)


def with_needed_flops(rows: list[dict]) -> list[dict]:
    sums: dict[tuple, int] = defaultdict(int)
    for row in rows:
        sums[row["kind"], row["class"], row["layer"]] += row["flops"]
    for row in rows:
        share = 1.0
        forward = sums.get(("convolution_forward", row["class"], row["layer"]))
        if row["kind"] == "convolution_backward_data" and forward is not None:
            share = min(1, forward / sums[row["kind"], row["class"], row["layer"]])
        row["flops_needed"] = row["flops"] * share
    return rows


def ranks_by_class(program: str) -> dict[int, list[int]]:
    """From the line of a program's text that gives runs of ranks: `classes 0*1 1*2`."""
    line = next(line for line in program.split("\n") if line.startswith("classes "))
    ranks, next_rank = defaultdict(list), 0
    for word in line.split()[1:]:
        index, count = map(int, word.split("*"))
        ranks[index] += range(next_rank, next_rank + count)
        next_rank += count
    return ranks


def merged(turns: list[dict]) -> list[dict]:
    """Takes the tasks out of turns of one program and joins them: measured seconds become a list."""
    taken = [turn.pop("tasks") for turn in turns]
    return [same[0] | {"measured_seconds": [task["measured_seconds"] for task in same]} for same in zip(*taken)]


class Rates:
    """The best of all rounds of the machine's rates on so many cores, shared by some ranks."""

    def __init__(self, size: dict, cores: int | str, ranks: int = 1) -> None:
        rounds = size["rates"][str(cores)]
        self.flops = max(r["peak_gflops"] for r in rounds) * 1e9 / ranks
        self.bytes = max(r["triad_gbytes"] for r in rounds) * 1e9 / ranks

    def seconds(self, task: dict) -> float:
        return max(task["flops_needed"] / self.flops, task["bytes"] / self.bytes)


def parts(size: dict) -> Iterator[str]:
    """Rooflines of the steps of a size, and where the steps of one rank lie above theirs."""
    able = [one for one in size["contenders"] if one.get("tasks")]
    told = []
    for cores in sorted(size["rates"], key=int):
        rates = Rates(size, cores)
        told.append(
            f"{cores} core(s): {rates.flops * 1e-9:.1f} GFLOP/s of multiply-adds in registers,"
            f" {rates.bytes * 1e-9:.1f} GB/s of a triad"
        )
    columns = "who | batch> | step, s> | roofline, s> | step / roofline> | kernels in the trace, s>"
    yield f"""\
Rooflines: the sum over a rank's kernels of the longer of flops / peak and bytes / triad, as\
 the program counts them, without the frame of a gradient (of the rank with most). Best of this run, {'; '.join(told)}\
 (its writes counted once).

{table(columns, (row(one, size) for one in able))}"""
    for one in able:
        if one["facts"]["ranks"] == 1 and one["batch"] == 1:
            yield excess(one, Rates(size, one["cores"]))


def row(one: dict, size: dict) -> list:
    step = step_seconds(one)
    floor = by_class(one, Rates(size, one["cores"], one["facts"]["ranks"]).seconds)
    kernels = by_class(one, measured)
    return [one["name"], one["batch"], f"{step:.4f}", f"{floor:.4f}", f"{step / floor:.2f}", f"{kernels:.4f}"]


def measured(task: dict) -> float:
    return median(task["measured_seconds"])


def by_class(contender: dict, seconds: Callable[[dict], float]) -> float:
    """The most that a class of ranks sums up to."""
    sums: dict[int, float] = defaultdict(float)
    for task in contender["tasks"]:
        sums[task["class"]] += seconds(task)
    return max(sums.values())


def excess(one: dict, rates: Rates) -> str:
    """Kernels with the most time beyond their roofline."""

    def beyond(task: dict) -> float:
        return measured(task) - rates.seconds(task)

    rows = []
    for task in sorted(one["tasks"], key=beyond, reverse=True)[:SHOWN]:
        times = (rates.seconds(task), task["seconds"], measured(task), beyond(task))
        counts = [f"{task['flops_needed'] * 1e-9:.3f}", f"{task['bytes'] * 1e-6:.2f}"]
        milliseconds = (f"{1e3 * seconds:.3f}" for seconds in times)
        rows.append([task["layer"], task["phase"], task["kind"], *counts, *milliseconds])
    columns = "layer | phase | kernel | GFLOP> | MB> | roofline> | predicted> | measured> | beyond>"
    return f"{one['name']}: kernels with the most time beyond their roofline, in ms:\n\n{table(columns, rows)}"
