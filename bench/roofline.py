"""What a step would take if each of its tasks ran at the machine's peak or at the rate of its memory.

The flops and bytes are those that the program counts: each view of a task read and written once. But
a gradient of data is counted with the zero frame of its operand, where nothing needs to be computed:
here it has no more flops than the same layer forward.
"""

import json
from statistics import mean, median

# Of these a table shows the first.
SHOWN = 12


def tasks(output):
    """The kernels of a run: what the program counts, what was predicted, and what the trace shows."""
    prediction = json.loads((output / "prediction.json").read_text())
    trace = json.loads((output / "trace.json").read_text())
    seconds = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            key = event["pid"], event["args"]["task"]
            seconds.setdefault(key, []).append(event["dur"] * 1e-6)
    ranks = ranks_by_class(trace["program"])
    rows = []
    for task in prediction["tasks"]:
        if task["bytes"] == 0:
            continue
        keys = [(rank, task["task"]) for rank in ranks[task["class"]]]
        measured = mean(median(seconds[key]) for key in keys)
        rows.append(task | {"measured_seconds": measured})
    return with_needed_flops(rows)


def with_needed_flops(rows):
    forward = flops_by_layer(rows, "convolution_forward")
    backward = flops_by_layer(rows, "convolution_backward_data")
    for row in rows:
        layer = row["class"], row["layer"]
        framed = row["kind"] == "convolution_backward_data" and layer in forward
        share = min(1, forward[layer] / backward[layer]) if framed else 1
        row["flops_needed"] = row["flops"] * share
    return rows


def flops_by_layer(rows, kind):
    sums = {}
    for row in rows:
        if row["kind"] == kind:
            layer = row["class"], row["layer"]
            sums[layer] = sums.get(layer, 0) + row["flops"]
    return sums


def ranks_by_class(program):
    """From the line of a program's text that gives runs of ranks: `classes 0*1 1*2`."""
    line = next(line for line in program.split("\n") if line.startswith("classes "))
    ranks, next_rank = {}, 0
    for word in line.split()[1:]:
        number, count = map(int, word.split("*"))
        ranks.setdefault(number, []).extend(range(next_rank, next_rank + count))
        next_rank += count
    return ranks


def merged(turns):
    """Takes the tasks out of turns of one program and joins them: measured seconds become a list."""
    taken = [turn.pop("tasks") for turn in turns]
    return [
        same[0] | {"measured_seconds": [task["measured_seconds"] for task in same]}
        for same in zip(*taken)
    ]


class Rates:
    """The best of all rounds of the machine's rates on so many cores, shared by some ranks."""

    def __init__(self, size, cores, ranks):
        rounds = size["rates"][str(cores)]
        self.flops = max(r["peak_gflops"] for r in rounds) * 1e9 / ranks
        self.bytes = max(r["triad_gbytes"] for r in rounds) * 1e9 / ranks

    def seconds(self, task):
        return max(task["flops_needed"] / self.flops, task["bytes"] / self.bytes)


def write(size):
    """Rooflines of the steps of a size, and where the steps of one rank lie above theirs."""
    able = [c for c in size["contenders"] if c.get("tasks")]
    lines = [
        "Rooflines: the sum over a rank's kernels of the longer of flops / peak and bytes / triad, as"
        " the program counts them, without the frame of a gradient (of the rank with most). " + rates_line(size),
        "",
        "| who | batch | step, s | roofline, s | step / roofline | kernels in the trace, s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for c in able:
        step = median(turn["step_seconds"] for turn in c["turns"])
        floor = by_class(c, Rates(size, c["cores"], c["facts"]["ranks"]).seconds)
        kernels = by_class(c, measured)
        lines.append(
            f"| {c['name']} | {c['batch']} | {step:.4f} | {floor:.4f} | {step / floor:.2f} |"
            f" {kernels:.4f} |"
        )
    alone = [c for c in able if c["facts"]["ranks"] == 1 and c["batch"] == 1]
    return "\n\n".join(["\n".join(lines), *(excess_table(c, size) for c in alone)])


def rates_line(size):
    told = []
    for cores in sorted(size["rates"], key=int):
        rates = Rates(size, cores, 1)
        told.append(
            f"{cores} core(s): {rates.flops * 1e-9:.1f} GFLOP/s of multiply-adds in registers,"
            f" {rates.bytes * 1e-9:.1f} GB/s of a triad"
        )
    return f"Best of this run, {'; '.join(told)} (its writes counted once)."


def measured(task):
    return median(task["measured_seconds"])


def by_class(contender, seconds):
    """The most that a class of ranks sums up to."""
    sums = {}
    for task in contender["tasks"]:
        sums[task["class"]] = sums.get(task["class"], 0.0) + seconds(task)
    return max(sums.values())


def excess_table(contender, size):
    rates = Rates(size, contender["cores"], 1)

    def beyond(task):
        return measured(task) - rates.seconds(task)

    worst = sorted(contender["tasks"], key=beyond, reverse=True)[:SHOWN]
    lines = [
        f"{contender['name']}: kernels with the most time beyond their roofline, in ms:",
        "",
        "| layer | phase | kernel | GFLOP | MB | roofline | predicted | measured | beyond |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for task in worst:
        times = (rates.seconds(task), task["seconds"], measured(task), beyond(task))
        figures = " | ".join(f"{1e3 * seconds:.3f}" for seconds in times)
        lines.append(
            f"| {task['layer']} | {task['phase']} | {task['kind']} | {task['flops_needed'] * 1e-9:.3f} |"
            f" {task['bytes'] * 1e-6:.2f} | {figures} |"
        )
    return "\n".join(lines)
