"""Records branches on groups of ranks beside data parallelism, as the samples of a rank shrink.

Predicted for eight ranks of the machine Lassen: Inception-v3 under data parallelism, with its blocks on two or four
groups of ranks, and both in one; a transformer split by samples, by channels throughout (`channel`), and in pairs of
filters and channels. Measured on this machine: Inception-v3 on two ranks of one thread, by samples and by branches. And
a transformer learns to sort, to reverse and to add, alone and as a pipeline.
"""

import shutil

from page import MEBIBYTE, disturbance, head, percent, step_seconds, table, values_of
from runner import STEPS, Bench, Failure, Record, number, race, say
from trainings import Training, settings_of, shapes, trained

MACHINE, RANKS, BATCHES = "lassen", 8, (64, 32, 16, 8, 4)
INCEPTION = ("data=8", "data=4,branch=2", "data=2,branch=4", "branch=8")
PAIRS = "; *.out: C=filter,F=-"
TRANSFORMER = ("data=8", "data=2,channel=4", "data=2,filter=4", "data=2,filter=4" + PAIRS, "filter=8" + PAIRS)
NETWORKS = {"inceptionv3@299": INCEPTION, "t5-6-512-8@64": TRANSFORMER}
KEPT = ("iteration_seconds", "samples_per_second", "memory_bytes_max", "digest", "breakdown")

# A small network of the family, which two cores can train.
MEASURED, MEASURED_STRATEGIES, MEASURED_BATCHES = "inceptionv3@128", ("data=2", "branch=2"), (8, 4, 2, 1)

# Task, digits, samples, strategy, epochs.
TASKS = (
    ("sort", 8, 40000, "data=1", 3),
    ("reverse", 8, 40000, "data=1", 3),
    ("add", 4, 40000, "data=1", 6),
    ("sort", 8, 40000, "stages=2,micro=4,schedule=1f1b", 3),
)


def predicted(bench: Bench, model: str, strategy: str, batch: int) -> dict:
    """Samples a second and memory, or why there is no such program."""
    case = {"strategy": strategy, "batch": batch}
    words = ["predict", model, "--machine", MACHINE, "--ranks", RANKS, "--batch", batch, "--strategy", strategy]
    try:
        answer = bench.json(*words, "--no-io")
    except Failure as failure:
        return case | {"refused": str(failure).strip().splitlines()[-1]}
    return case | {key: answer[key] for key in KEPT}


def raced(bench: Bench) -> dict:
    scene, batches = shapes(MEASURED, 24), []
    scene.make(bench)
    for batch in MEASURED_BATCHES:
        ways = [(strategy, 2) for strategy in MEASURED_STRATEGIES if batch > 1 or "data" not in strategy]
        ways.append(("data=1", 1))
        racers = [Training(bench, scene, strategy, batch, bench.options.steps, ranks) for strategy, ranks in ways]
        batches.append({"batch": batch, "contenders": race(bench, racers, f"{MEASURED}, batch {batch}")})
    shutil.rmtree(bench.folder / scene.data)
    return {"model": MEASURED, "batches": batches}


def learned(bench: Bench, task: str, digits: int, samples: int, strategy: str, epochs: int) -> dict:
    """The accuracy of a transformer on strings that it has not seen."""
    say(f"A transformer learns to {task} under {strategy}.")
    data = f"digits-{task}"
    shutil.rmtree(bench.folder / data, ignore_errors=True)
    maker = ["digits", "--task", task, "--digits", digits, "--samples", samples, "--test", 0]
    bench.run("data", *maker, "--out", data)
    model = f"t5-2-64-4@{bench.json('data', 'inspect', data)['extent'][-1]}"
    fields = {"model": model, "data": data, "epochs": epochs, "ranks": 2 if "stages" in strategy else 1}
    fields["strategy"] = strategy
    result = trained(bench, settings_of(**fields, batch=64, schedule="cosine", rate=1e-3))
    shutil.rmtree(bench.folder / data)
    return {"task": task, "digits": digits, "samples": samples, **fields, "result": result}


def measure(bench: Bench) -> dict:
    networks = []
    for model, strategies in NETWORKS.items():
        found = [predicted(bench, model, strategy, batch) for batch in BATCHES for strategy in strategies]
        networks.append({"model": model, "predictions": found})
    head_of = {"steps": bench.options.steps, "machine_of_predictions": MACHINE, "ranks": RANKS, "networks": networks}
    return head_of | {"measured": raced(bench), "tasks": [learned(bench, *task) for task in TASKS]}


def page(record: dict, raw: str):
    yield head(record, "Branches on groups of ranks", f"""\
With `branch` the branches of a block run on groups of ranks, all samples of their part of the
mini-batch on each; the layers around them split samples over all ranks. The fewer samples a rank
has, the more that is worth. Raw data: `{raw}`.""")
    for network in record["networks"]:
        found = network["predictions"]
        batches = sorted(values_of(found, "batch"), reverse=True)
        columns = " | ".join(f"batch {batch}>" for batch in batches)
        yield f"""\
## {network['model']} on {record['ranks']} ranks of {record['machine_of_predictions']}, predicted

Samples a second, and their ratio to the first line; `-` where there are too few samples.

{table(f"strategy | {columns} | memory at the largest>", predictions(found, batches))}"""
    run = record["measured"]
    yield f"""\
## {run['model']} on this machine, measured

Seconds of a step, the median of {record['rounds']} round(s) of at least {record['steps']} steps.
{disturbance(record, run)}

{table("batch> | strategy | ranks> | seconds> | ratio to one rank>", measured(run))}"""
    yield f"""\
## A transformer on strings of digits

Encoder and decoder of two layers of 64 channels and 4 heads, Adam at 1e-3 with a cosine, batch 64.
The accuracy is that of single answers of strings that were not trained on, given the right answers
before them; padding counts, and the share of the most frequent answer stands beside it.

{table("task | digits> | strategy | epochs> | accuracy> | most frequent> | step>", map(task_row, record["tasks"]))}"""


def predictions(found: list[dict], batches: list[int]):
    cases = {(one["strategy"], one["batch"]): one for one in found}
    strategies = values_of(found, "strategy")
    for strategy in strategies:
        cells = [rate(cases[strategy, batch], cases[strategies[0], batch]) for batch in batches]
        largest = cases[strategy, batches[0]]
        memory = "-" if "refused" in largest else f"{largest['memory_bytes_max'] / MEBIBYTE:.0f} MiB"
        yield [f"`{strategy}`", *cells, memory]


def rate(own: dict, first: dict) -> str:
    if "refused" in own:
        return "-"
    text = f"{own['samples_per_second']:.0f}"
    if "refused" in first or own is first:
        return text
    return f"{text} ({own['samples_per_second'] / first['samples_per_second']:.2f})"


def measured(run: dict):
    for batch in run["batches"]:
        alone = step_seconds(batch["contenders"][-1])
        for one in batch["contenders"]:
            facts, seconds = one["facts"], step_seconds(one)
            yield [batch["batch"], f"`{facts['strategy']}`", facts["ranks"], f"{seconds:.4f}", f"{alone / seconds:.2f}"]


def task_row(task: dict) -> list:
    found = task["result"]["epochs"][-1]["validation"]["classification"]
    shares = [percent(found[key]) for key in ("accuracy", "largest_share")]
    step = f"{1000 * task['result']['step_seconds_median']:.1f} ms"
    return [task["task"], task["digits"], f"`{task['strategy']}`", task["epochs"], *shares, step]


if __name__ == "__main__":
    Record("branches", measure, page, {"--steps": number(20, STEPS)}).take()
