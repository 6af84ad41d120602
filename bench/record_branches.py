"""Records branches on groups of ranks beside data parallelism, as the samples of a rank shrink.

Predicted for eight ranks of the machine Lassen, from the programs and the facts of its machine file:
Inception-v3 under data parallelism, with its blocks on two or four groups of ranks, and both in one;
a transformer split by samples, by channels throughout (`channel`), and in pairs of filters and channels.
Measured on this machine: Inception-v3 on two ranks of one thread, by samples and by branches, in turns.

And a transformer learns to sort, to reverse and to add: the accuracy of its answers after training, alone
and as a pipeline.

Writes records/<date>-branches.md and, with all raw figures, the same name with .json.
"""

import argparse
import json
import shutil

import contest
import record_branches_text
from contest import run_partita, say
from runs import Training, shapes

MACHINE, RANKS = "lassen", 8
INCEPTION = ("data=8", "data=4,branch=2", "data=2,branch=4", "branch=8")
PAIRS = "; *.out: C=filter,F=-"
TRANSFORMER = ("data=8", "data=2,channel=4", "data=2,filter=4", "data=2,filter=4" + PAIRS, "filter=8" + PAIRS)
NETWORKS = (
    ("inceptionv3@299", INCEPTION, (64, 32, 16, 8, 4)),
    ("t5-6-512-8@64", TRANSFORMER, (64, 32, 16, 8, 4)),
)

# A small network of the family, which two cores can train.
MEASURED, MEASURED_STRATEGIES, MEASURED_BATCHES = "inceptionv3@128", ("data=2", "branch=2"), (8, 4, 2, 1)

TASKS = (
    ("sort", 8, 40000, "data=1", 3),
    ("reverse", 8, 40000, "data=1", 3),
    ("add", 4, 40000, "data=1", 6),
    ("sort", 8, 40000, "stages=2,micro=4,schedule=1f1b", 3),
)


def predicted(options, folder, model, strategy, batch):
    """Samples a second and memory, or why there is no such program."""
    words = ["predict", model, "--machine", MACHINE, "--ranks", RANKS, "--batch", batch]
    words += ["--strategy", strategy, "--no-io", "--json"]
    try:
        answer = json.loads(run_partita(options, folder, map(str, words)))
    except contest.Failure as failure:
        return {"strategy": strategy, "batch": batch, "refused": str(failure).strip().splitlines()[-1]}
    keys = ("iteration_seconds", "samples_per_second", "memory_bytes_max", "digest", "breakdown")
    return {"strategy": strategy, "batch": batch} | {key: answer[key] for key in keys}


def measured(options, folder):
    scene = shapes(MEASURED, 24)
    scene.make(options, folder)
    batches = []
    for batch in MEASURED_BATCHES:
        usable = [s for s in MEASURED_STRATEGIES if batch > 1 or "data" not in s]
        racers = [Training(options, folder, scene, s, batch, options.steps, 2) for s in usable]
        racers.append(Training(options, folder, scene, "data=1", batch, options.steps, 1))
        turns = contest.rounds(options.rounds, racers, f"{MEASURED}, batch {batch}")
        entries = [contest.entry(r, "Partita", taken) for r, taken in zip(racers, turns)]
        batches.append({"batch": batch, "contenders": entries})
    shutil.rmtree(folder / scene.data)
    return {"model": MEASURED, "batches": batches}


LEARN = """model = "{model}"
data = "{data}"
output = "out"
batch = 64
epochs = {epochs}
ranks = {ranks}
seed = 1
strategy = "{strategy}"

[optimizer]
kind = "adam"

[schedule]
kind = "cosine"
learning_rate = 1e-3
"""


def learned(options, folder, task, digits, samples, strategy, epochs):
    """The accuracy of a transformer on strings that it has not seen."""
    say(f"A transformer learns to {task} under {strategy}.")
    data = f"digits-{task}"
    maker = ["data", "digits", "--task", task, "--digits", digits, "--samples", samples, "--test", 0]
    shutil.rmtree(folder / data, ignore_errors=True)
    run_partita(options, folder, [*map(str, maker), "--out", data])
    facts = json.loads(run_partita(options, folder, ["data", "inspect", data, "--json"]))
    model = f"t5-2-64-4@{facts['extent'][-1]}"
    ranks = 2 if "stages" in strategy else 1
    fields = {"model": model, "data": data, "epochs": epochs, "ranks": ranks, "strategy": strategy}
    (folder / "run.toml").write_text(LEARN.format(**fields))
    shutil.rmtree(folder / "out", ignore_errors=True)
    run_partita(options, folder, ["train", "run.toml"])
    result = json.loads((folder / "out" / "result.json").read_text())
    shutil.rmtree(folder / data)
    return {"task": task, "digits": digits, "samples": samples, **fields, "result": result}


def record(options, folder):
    head = contest.head(options, folder, "record_branches.py", ["--steps", options.steps])
    networks = [
        {
            "model": model,
            "predictions": [predicted(options, folder, model, s, b) for b in batches for s in strategies],
        }
        for model, strategies, batches in NETWORKS
    ]
    run = measured(options, folder)
    tasks = [learned(options, folder, *task) for task in TASKS]
    return head | {
        "finished": contest.now(),
        "steps": options.steps,
        "machine_of_predictions": MACHINE,
        "ranks": RANKS,
        "networks": networks,
        "measured": run,
        "tasks": tasks,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--steps", type=contest.whole, default=20, help="timed steps of a turn, at least")
    contest.take(parser, "branches", record, record_branches_text.write)


if __name__ == "__main__":
    main()
