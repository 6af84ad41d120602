"""Records how large an image may be under a limit of memory for each way of splitting a training.

Sizes double; the largest that fits 16, 32 and 80 GB a rank is found for data parallelism, stages one
after the other, a pipeline, two replicas in opposite directions, a split of the image, and all of these
together. What fits is what `partita predict` says of the program that would run: it is lowered and laid
out in memory, not estimated. Layers of stages are those that `partita` chooses under the limit.

Then the same is done for real, on a smaller scale: under limits of some MiB a rank a step of training
is run at the largest size that fits, and the next size must be refused. Resident memory of the process
stands beside what was predicted for its ranks.

Writes records/<date>-ladder.md and, with all raw figures, the same name with .json.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import time

import contest
import record_ladder_text
from contest import Failure, say
from runs import RUN_FILE, Scene

BATCH = 8
# Descending, since what fits a smaller limit, too, is the same under it.
LIMITS = (80, 32, 16)
MODELS = (("resnet110v2", 256), ("amoebanetd-18-214", 256))
LARGEST = 16384
# The exit code of a wish that cannot be.
REFUSED = 2

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
    (
        "image and pipeline",
        8,
        "micro=8,stages=[height=2,width=2|height=2|1|1],schedule=1f1b",
    ),
    (
        "all five",
        24,
        "data=2,micro=4,stages=[height=2,width=2|1|1|1|1|height=2,width=2],schedule=gems*2",
    ),
    ("samples, and layers", 512, "data=8,stages=64,schedule=sequential"),
    ("samples, and the image", 512, "data=8,height=8,width=8"),
)

# Model, MiB a rank, ranks, strategy.
CONFIRMED = tuple(
    ("resnet110v2", limit, ranks, strategy)
    for limit in (96, 240)
    for ranks, strategy in (
        (4, "data=4"),
        (4, "stages=4,micro=4,schedule=sequential"),
        (4, "stages=4,micro=4,schedule=1f1b"),
        (4, "stages=4,micro=4,schedule=gems*2"),
        (4, "height=2,width=2,micro=4"),
        (4, "micro=4,stages=[height=2|1|1],schedule=1f1b"),
        (12, "data=2,micro=2,stages=[height=2|1|1|height=2],schedule=gems"),
    )
)
SMALL_BATCH = 4
SMALLEST, SMALL_LARGEST = 32, 1024


def asked(options, folder, words):
    """What a verb answers in JSON, or why it refuses, and the seconds that it took."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    start = time.monotonic()
    command = [str(options.partita), *map(str, words)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - start
    if done.returncode == 0:
        return {"answer": done.stdout, "seconds": seconds}
    if done.returncode != REFUSED:
        raise Failure(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr}")
    return {"refusal": done.stderr.strip(), "seconds": seconds}


def predicted(options, folder, model, ranks, batch, strategy, limit):
    words = ["predict", model, "--ranks", ranks, "--batch", batch, "--strategy", strategy]
    words += ["--machine", "lassen", "--no-io", "--memory", limit, "--samples", "float32", "--json"]
    done = asked(options, folder, words)
    if "answer" in done:
        record = json.loads(done.pop("answer"))
        return done | {key: record[key] for key in ("strategy", "memory_bytes_max", "digest")}
    least = re.search(r"needs at least ([\d.]+ \wiB)", done["refusal"])
    return done | {"least": least and least[1]}


def is_known(step, limit, strategy):
    """Whether what was said under a larger limit holds under this one."""
    if "memory_bytes_max" not in step:
        return True
    return step["memory_bytes_max"] <= limit * 10**9 or "stages" not in strategy


def climb(options, folder, model, smallest, way, limit, known):
    """Every size from the smallest on until one does not fit; `known` holds steps by their size."""
    name, ranks, strategy = way
    steps, size = [], smallest
    while size <= LARGEST:
        step = known.get(size)
        if step is None or not is_known(step, limit, strategy):
            words = (f"{model}@{size}", ranks, BATCH, strategy, f"{limit}GB")
            step = known[size] = predicted(options, folder, *words)
        step = step | {"size": size}
        step["fits"] = step.get("memory_bytes_max", limit * 10**9 + 1) <= limit * 10**9
        steps.append(step)
        if not step["fits"]:
            break
        size *= 2
    fits = [step["size"] for step in steps if step["fits"]]
    took = max(step["seconds"] for step in steps)
    say(f"{model}, {limit} GB, {name}: {fits[-1] if fits else 'none'} ({took:.1f} s a size at most)")
    return {"model": model, "limit_gb": limit, "name": name, "ranks": ranks} | {
        "strategy": strategy,
        "largest": fits[-1] if fits else None,
        "steps": steps,
    }


def train(options, folder, model, size, ranks, strategy, limit):
    """One step of training, or why there is none."""
    data = f"data-{size}"
    if not (folder / data).exists():
        maker = ("shapes", "--size", size, "--images", 2 * SMALL_BATCH, "--classes", 10)
        Scene(data, (*maker, "--validation", 0.5), SMALL_BATCH).make(options, folder)
        (folder / f"data-{data}").rename(folder / data)
    text = RUN_FILE.format(
        model=f"{model}@{size}+10" if model.startswith("amoeba") else f"{model}@{size}",
        data=data,
        transform="{scale = 0.01}",
        ranks=ranks,
        strategy=strategy,
        threads=1,
        batch=SMALL_BATCH,
        epochs=2,
    )
    (folder / "run.toml").write_text(text.replace("threads = 1\n", f'threads = 1\nmemory = "{limit}MiB"\n'))
    shutil.rmtree(folder / "out", ignore_errors=True)
    done = asked(options, folder, ["train", "run.toml"])
    if "refusal" in done:
        return {"size": size, "refusal": done["refusal"], "seconds": done["seconds"]}
    result = json.loads((folder / "out" / "result.json").read_text())
    return {"size": size, "seconds": done["seconds"], "result": result}


def confirm(options, folder, model, limit, ranks, strategy):
    """Trains at every size until one is refused."""
    steps, size = [], SMALLEST
    while size <= SMALL_LARGEST:
        steps.append(train(options, folder, model, size, ranks, strategy, limit))
        if "refusal" in steps[-1]:
            break
        size *= 2
    ran = [step["size"] for step in steps if "result" in step]
    say(f"{model}, {limit} MiB, {strategy}: trained up to {ran[-1] if ran else 'none'}")
    return {"model": model, "limit_mib": limit, "ranks": ranks, "strategy": strategy} | {
        "largest": ran[-1] if ran else None,
        "steps": steps,
    }


def record(options, folder):
    head = contest.head(options, folder, "record_ladder.py", [])
    ladder = []
    for model, smallest in MODELS:
        for way in WAYS:
            known = {}
            ladder += [climb(options, folder, model, smallest, way, limit, known) for limit in LIMITS]
    confirmed = [confirm(options, folder, *case) for case in CONFIRMED]
    return head | {"finished": contest.now(), "batch": BATCH, "small_batch": SMALL_BATCH} | {
        "ladder": ladder,
        "confirmed": confirmed,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    contest.take(parser, "ladder", record, record_ladder_text.write)


if __name__ == "__main__":
    main()
