"""Records where each schedule of a pipeline wins, by stages, micro-batches and memory.

Every cell is a prediction of a training step on lassen, which `partita predict` makes from a program that was lowered,
with layers of stages chosen under the limit of memory. The mini-batch is as many samples as there are micro-batches,
times a fixed size of these. GEMS runs with as few turns as the micro-batches allow and with as many.
"""

import json

from page import head, table, values_of
from runner import Bench, Record, say

STAGES = (2, 4, 8)
# Micro-batches to a stage.
DEPTHS = (1, 2, 4)
SCHEDULES = ("gpipe", "1f1b", "zero-bubble", "chimera", "gems", "gems*MOST")
# Model, samples of a micro-batch.
NETWORKS = (("resnet110v2@128", 4), ("cosmoflow@128", 1))
# Limits, as shares between the least and the most memory that any schedule takes without one.
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25)
PLENTY = 2**50
KEPT = ("samples_per_second", "iteration_seconds", "memory_bytes_max", "strategy", "digest")


def predicted(bench: Bench, model: str, stages: int, micro: int, batch: int, schedule: str, limit: int) -> dict:
    name = schedule.replace("MOST", str(micro // 2)).removesuffix("*1")
    words = ["predict", model, "--ranks", stages, "--batch", batch, "--machine", "lassen", "--no-io", "--json"]
    words += ["--strategy", f"stages={stages},micro={micro},schedule={name}", "--memory", f"{limit}B"]
    done = bench.asked(*words)
    if "refusal" in done:
        return {"schedule": schedule, "refusal": done["refusal"]}
    answer = json.loads(done["answer"])
    return {"schedule": schedule} | {key: answer[key] for key in KEPT}


def cells(bench: Bench, model: str, stages: int, micro: int, batch: int):
    """A cell for each share of the memory."""
    case = (bench, model, stages, micro, batch)
    free = [predicted(*case, schedule, PLENTY) for schedule in SCHEDULES]
    most = max(one["memory_bytes_max"] for one in free if "refusal" not in one)
    for share in SHARES:
        limit = int(most * share)
        # A schedule that fits as it is needs no other layers.
        fits = [one.get("memory_bytes_max", limit + 1) <= limit for one in free]
        each = [one if fit else predicted(*case, one["schedule"], limit) for one, fit in zip(free, fits)]
        facts = {"stages": stages, "micro": micro, "batch": batch, "limit": limit, "share": share}
        yield facts | {"schedules": each}
    say(f"{model}, {stages} stages, {micro} micro-batches: done")


def measure(bench: Bench) -> dict:
    networks = []
    for model, samples in NETWORKS:
        grid = [(stages, stages * depth) for stages in STAGES for depth in DEPTHS]
        found = [cell for stages, micro in grid for cell in cells(bench, model, stages, micro, micro * samples)]
        networks.append({"model": model, "samples": samples, "cells": found})
    return {"networks": networks}


def page(record: dict, raw: str):
    yield head(record, "Which schedule of a pipeline wins", f"""\
Predicted samples/s of stages of one rank on lassen, reading left out, by number of stages,
micro-batches, and memory that a rank may fill. Limits are shares of what the largest schedule
takes if it may take all. In a cell stand the winner, its samples/s, and how many times faster
it is than the next, and who does not fit at all. `gems*` is GEMS with as many turns as there are
pairs of micro-batches, `gems` with one turn of each replica.
Nothing of this was run. Raw data: `{raw}`.""")
    for network in record["networks"]:
        found = network["cells"]
        rows = []
        for key in dict.fromkeys((cell["stages"], cell["micro"]) for cell in found):
            rows.append([*key, *(shown(cell) for cell in found if (cell["stages"], cell["micro"]) == key)])
        shares = values_of(found, "share")
        columns = " | ".join(f"{100 * share:.0f} %" for share in shares)
        title = f"## {network['model']}, {network['samples']} sample(s) a micro-batch"
        yield f"{title}\n\n" + table(f"stages> | micro-batches> | {columns}", rows)
        yield "Winners:\n\n" + "\n".join(wins(share, [c for c in found if c["share"] == share]) for share in shares)


def ranked(cell: dict) -> list[dict]:
    fit = [one for one in cell["schedules"] if "refusal" not in one]
    return sorted(fit, key=lambda one: -one["samples_per_second"])


def short(one: dict) -> str:
    return one["schedule"].replace("MOST", "")


def shown(cell: dict) -> str:
    fit, limit = ranked(cell), f"{cell['limit'] / 2**20:.0f} MiB: "
    if not fit:
        return limit + "none fits"
    best = fit[0]["samples_per_second"]
    text = f"{limit}**{short(fit[0])}** {best:.1f}"
    others = [one for one in fit[1:] if one["digest"] != fit[0]["digest"]]
    if others:
        text += f", {best / others[0]['samples_per_second']:.2f} x {short(others[0])}"
    out = [short(one) for one in cell["schedules"] if "refusal" in one]
    return text + (f"; not {', '.join(out)}" if out else "")


def wins(share: float, found: list[dict]) -> str:
    """How often each wins with a share of the memory."""
    firsts = [short(ranked(cell)[0]) for cell in found if ranked(cell)]
    counts = sorted(((firsts.count(name), name) for name in set(firsts)), reverse=True)
    text = ", ".join(f"{name} {count}" for count, name in counts) or "none"
    return f"- {100 * share:.0f} % of the memory: {text}, of {len(found)} cells"


if __name__ == "__main__":
    Record("schedules", measure, page, {}).take()
