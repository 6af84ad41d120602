"""Records how large an image may be under a limit of memory for each way of splitting a training.

Sizes double; the largest that fits 16, 32 and 80 GB a rank is found. What fits is what `partita predict` says of the
program that would run: it is lowered and laid out in memory, not estimated. Then the same is done for real, on a
smaller scale: under limits of some MiB a rank a step of training is run at the largest size that fits, and the next
size must be refused. Resident memory of the process stands beside what was predicted for its ranks.
"""

import json
import re

from page import head, quoted, table, values_of
from runner import Bench, Record, say
from trainings import SCALED, prepare, result_of, settings_of

BATCH = 8
# Descending, since what fits a smaller limit, too, is the same under it.
LIMITS = (80, 32, 16)
MODELS = ("resnet110v2", "amoebanetd-18-214")
SMALLEST, LARGEST = 256, 16384
# Name, ranks, strategy.
WAYS = (
    ("data", 8, "data=8"),
    ("layers", 8, "stages=8,schedule=sequential"),
    ("layers, a sample at a time", 8, "stages=8,micro=8,schedule=sequential"),
    ("pipeline", 8, "stages=8,micro=8,schedule=1f1b"),
    ("two replicas (GEMS)", 8, "stages=8,micro=8,schedule=gems*4"),
    ("image", 8, "height=4,width=2"),
    ("image, a sample at a time", 8, "height=4,width=2,micro=8"),
    ("layers of more ranks, a sample at a time", 24, "stages=24,micro=8,schedule=sequential"),
    ("image and pipeline", 8, "micro=8,stages=[height=2,width=2|height=2|1|1],schedule=1f1b"),
    ("all five", 24, "data=2,micro=4,stages=[height=2,width=2|1|1|1|1|height=2,width=2],schedule=gems*2"),
    ("samples, and layers", 512, "data=8,stages=64,schedule=sequential"),
    ("samples, and the image", 512, "data=8,height=8,width=8"),
)

# What is trained: a model under limits in MiB a rank, and ranks with strategies.
SMALL_MODEL, SMALL_BATCH, SMALL_SIZES, SMALL_LIMITS = "resnet110v2", 4, (32, 64, 128, 256, 512, 1024), (96, 240)
CONFIRMED = (
    (4, "data=4"),
    (4, "stages=4,micro=4,schedule=sequential"),
    (4, "stages=4,micro=4,schedule=1f1b"),
    (4, "stages=4,micro=4,schedule=gems*2"),
    (4, "height=2,width=2,micro=4"),
    (4, "micro=4,stages=[height=2|1|1],schedule=1f1b"),
    (12, "data=2,micro=2,stages=[height=2|1|1|height=2],schedule=gems"),
)


def predicted(bench: Bench, model: str, ranks: int, strategy: str, limit: int) -> dict:
    words = ["predict", model, "--ranks", ranks, "--batch", BATCH, "--strategy", strategy, "--memory", f"{limit}GB"]
    done = bench.asked(*words, "--machine", "lassen", "--no-io", "--samples", "float32", "--json")
    if "answer" in done:
        answer = json.loads(done.pop("answer"))
        return done | {key: answer[key] for key in ("strategy", "memory_bytes_max", "digest")}
    least = re.search(r"needs at least ([\d.]+ \wiB)", done["refusal"])
    return done | {"least": least and least[1]}


def is_known(step: dict | None, limit: int, strategy: str) -> bool:
    """Whether what was said under a larger limit holds under this one."""
    if step is None or "memory_bytes_max" not in step:
        return step is not None
    return step["memory_bytes_max"] <= limit * 10**9 or "stages" not in strategy


def climb(bench: Bench, model: str, way: tuple, limit: int, known: dict) -> dict:
    """Every size from the smallest on until one does not fit; `known` holds steps by their size."""
    name, ranks, strategy = way
    steps, size = [], SMALLEST
    while size <= LARGEST and (not steps or steps[-1]["fits"]):
        if not is_known(known.get(size), limit, strategy):
            known[size] = predicted(bench, f"{model}@{size}", ranks, strategy, limit)
        fits = known[size].get("memory_bytes_max", limit * 10**9 + 1) <= limit * 10**9
        steps.append(known[size] | {"size": size, "fits": fits})
        size *= 2
    largest = max((step["size"] for step in steps if step["fits"]), default=None)
    took = max(step["seconds"] for step in steps)
    say(f"{model}, {limit} GB, {name}: {largest} ({took:.1f} s a size at most)")
    facts = {"model": model, "limit_gb": limit, "name": name, "ranks": ranks, "strategy": strategy}
    return facts | {"largest": largest, "steps": steps}


def train(bench: Bench, size: int, ranks: int, strategy: str, limit: int) -> dict:
    """One step of training, or why there is none."""
    data = f"data-{size}"
    if not (bench.folder / data).exists():
        maker = ("shapes", "--size", size, "--images", 2 * SMALL_BATCH, "--classes", 10)
        bench.run("data", *maker, "--validation", 0.5, "--test", 0, "--out", data)
    more = {"kernels": "cpu", "transform": SCALED, "threads": 1, "memory": f"{limit}MiB"}
    run = settings_of(f"{SMALL_MODEL}@{size}", data, SMALL_BATCH, 2, ranks=ranks, strategy=strategy, **more)
    prepare(bench, run)
    done = bench.asked("train", "run.toml")
    if "answer" in done:
        done = {"seconds": done["seconds"], "result": result_of(bench)}
    return {"size": size} | done


def confirm(bench: Bench, limit: int, ranks: int, strategy: str) -> dict:
    """Trains at every size until one is refused."""
    steps: list[dict] = []
    for size in SMALL_SIZES:
        steps.append(train(bench, size, ranks, strategy, limit))
        if "refusal" in steps[-1]:
            break
    largest = max((step["size"] for step in steps if "result" in step), default=None)
    say(f"{SMALL_MODEL}, {limit} MiB, {strategy}: trained up to {largest}")
    facts = {"model": SMALL_MODEL, "limit_mib": limit, "ranks": ranks, "strategy": strategy}
    return facts | {"largest": largest, "steps": steps}


def measure(bench: Bench) -> dict:
    ladder = []
    for model in MODELS:
        for way in WAYS:
            known: dict = {}
            ladder += [climb(bench, model, way, limit, known) for limit in LIMITS]
    confirmed = [confirm(bench, limit, *case) for limit in SMALL_LIMITS for case in CONFIRMED]
    return {"batch": BATCH, "small_batch": SMALL_BATCH, "ladder": ladder, "confirmed": confirmed}


def page(record: dict, raw: str):
    yield head(record, "The largest image under a limit of memory", f"""\
Sides of square images double until the program of a training step does not fit into the memory
of a rank; shown is the last that does. Batch {record['batch']}, Adam, one-precision floats.
The programs are lowered and laid out in memory, not estimated; layers of stages are chosen
under the limit, and where none fit, the least need is told. Nothing here was run on such
machines; what was run stands at the end. Raw data: `{raw}`.""")
    for model in values_of(record["ladder"], "model"):
        entries = [entry for entry in record["ladder"] if entry["model"] == model]
        limits = sorted(values_of(entries, "limit_gb"))
        columns = " | ".join(f"{limit} GB>" for limit in limits)
        rows = (rung(entries, strategy, limits) for strategy in values_of(entries, "strategy"))
        yield f"## {model}\n\n" + table(f"| ranks> | strategy | {columns} | the next needs>", rows)
    steps = [(step["seconds"], step["size"], entry) for entry in record["ladder"] for step in entry["steps"]]
    seconds, size, entry = max(steps, key=lambda step: step[0])
    yield (
        f"To choose the stages and lower a program took at most {seconds:.1f} s of one core"
        f" ({entry['model']}@{size}, {entry['name']}, {entry['ranks']} ranks)."
    )
    columns = "model | ranks> | limit a rank> | strategy | largest trained> | largest arena> | all arenas> | resident>"
    yield f"""\
## Trained under limits of some MiB

Two steps of batch {record['small_batch']} with ranks as threads, at each size until one is
refused before any rank starts. Predicted is the sum of the arenas of all ranks, measured the
largest resident set of the process above what it was before.

{table(columns + " | of predicted> | refused", map(trained_row, record["confirmed"]))}"""


def rung(entries: list[dict], strategy: str, limits: list[int]) -> list:
    row = {entry["limit_gb"]: entry for entry in entries if entry["strategy"] == strategy}
    first = row[limits[0]]
    sizes = (row[limit]["largest"] or "none" for limit in limits)
    return [first["name"], first["ranks"], quoted(strategy), *sizes, need(row[limits[-1]]["steps"][-1])]


def need(last: dict) -> str:
    """What the first size that did not fit the largest limit needs."""
    if last["fits"] or "is not possible" in last.get("refusal", ""):
        return "no larger size in the zoo"
    if "memory_bytes_max" in last:
        return f"{last['memory_bytes_max'] / 1e9:.0f} GB"
    return last["least"] or last["refusal"].split("\n")[0]


def trained_row(entry: dict) -> list:
    ran = [step for step in entry["steps"] if "result" in step]
    refusal = next((step["size"] for step in entry["steps"] if "refusal" in step), "nothing")
    cells = [entry["model"], entry["ranks"], f"{entry['limit_mib']} MiB", quoted(entry["strategy"])]
    if not ran:
        return [*cells, "none", "", "", "", "", refusal]
    memory = ran[-1]["result"]["memory"]
    arenas, peak = memory["predicted_arena_bytes"], memory["measured_peak_bytes"]
    cells += [ran[-1]["size"], f"{memory['predicted_arena_bytes_max'] / 2**20:.1f} MiB", f"{arenas / 2**20:.1f} MiB"]
    cells += [f"{peak / 2**20:.1f} MiB", f"{peak / arenas:.2f}"] if peak else ["not known", ""]
    return [*cells, refusal]


if __name__ == "__main__":
    Record("ladder", measure, page, {}).take()
