"""Records where each schedule of a pipeline wins, by stages, micro-batches and memory.

Every cell is a prediction of a training step on lassen, which `partita predict` makes from a program
that was lowered, with layers of stages chosen under the limit of memory. The mini-batch is as many
samples as there are micro-batches, times a fixed size of these, so that more of them mean a larger
mini-batch. GEMS runs with as few turns as the micro-batches allow and with as many.

Writes records/<date>-schedules.md and, with all raw figures, the same name with .json.
"""

import argparse
import json

import contest
import record_schedules_text
from contest import say
from record_ladder import asked

STAGES = (2, 4, 8)
# Micro-batches to a stage.
DEPTHS = (1, 2, 4)
SCHEDULES = ("gpipe", "1f1b", "zero-bubble", "chimera", "gems", "gems*MOST")
# Model, samples of a micro-batch.
NETWORKS = (("resnet110v2@128", 4), ("cosmoflow@128", 1))
# Limits, as shares between the least and the most memory that any schedule takes without one.
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25)


def predicted(options, folder, model, stages, micro, batch, schedule, limit):
    name = schedule.replace("MOST", str(micro // 2)).removesuffix("*1")
    strategy = f"stages={stages},micro={micro},schedule={name}"
    words = ["predict", model, "--ranks", stages, "--batch", batch, "--strategy", strategy]
    words += ["--machine", "lassen", "--no-io", "--memory", f"{limit}B", "--json"]
    done = asked(options, folder, words)
    if "refusal" in done:
        return {"schedule": schedule, "refusal": done["refusal"]}
    record = json.loads(done["answer"])
    kept = ("samples_per_second", "iteration_seconds", "memory_bytes_max", "strategy", "digest")
    return {"schedule": schedule} | {key: record[key] for key in kept}


def cells(options, folder, model, samples):
    found = []
    for stages in STAGES:
        for depth in DEPTHS:
            micro = stages * depth
            batch = micro * samples
            plenty = 2**50
            free = [
                predicted(options, folder, model, stages, micro, batch, schedule, plenty)
                for schedule in SCHEDULES
            ]
            most = max(one["memory_bytes_max"] for one in free if "refusal" not in one)
            for share in SHARES:
                limit = int(most * share)
                # A schedule that fits as it is needs no other layers.
                each = [
                    one
                    if one.get("memory_bytes_max", limit + 1) <= limit
                    else predicted(options, folder, model, stages, micro, batch, one["schedule"], limit)
                    for one in free
                ]
                found.append(
                    {"stages": stages, "micro": micro, "batch": batch, "limit": limit, "share": share}
                    | {"schedules": each}
                )
            say(f"{model}, {stages} stages, {micro} micro-batches: done")
    return {"model": model, "samples": samples, "cells": found}


def record(options, folder):
    head = contest.head(options, folder, "record_schedules.py", [])
    networks = [cells(options, folder, *network) for network in NETWORKS]
    return head | {"finished": contest.now(), "networks": networks}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    contest.take(parser, "schedules", record, record_schedules_text.write)


if __name__ == "__main__":
    main()
