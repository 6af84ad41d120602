"""The text of a record of branches on groups of ranks; measures nothing."""

from statistics import median

from contest_text import circumstances, disturbance, percent


def write(record, raw_name):
    turns = [t for b in record["measured"]["batches"] for c in b["contenders"] for t in c["turns"]]
    parts = [head(record, raw_name)]
    parts += [predictions(record, network) for network in record["networks"]]
    parts += [measured(record, turns), learned(record)]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# Branches on groups of ranks, {record['started'][:10]}",
        "",
        "With `branch` the branches of a block run on groups of ranks, all samples of their part of the",
        "mini-batch on each; the layers around them split samples over all ranks. The fewer samples a rank",
        f"has, the more that is worth. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def predictions(record, network):
    machine, ranks = record["machine_of_predictions"], record["ranks"]
    found = network["predictions"]
    batches = sorted({p["batch"] for p in found}, reverse=True)
    strategies = list(dict.fromkeys(p["strategy"] for p in found))
    lines = [
        f"## {network['model']} on {ranks} ranks of {machine}, predicted",
        "",
        "Samples a second, and their ratio to the first line; `-` where there are too few samples.",
        "",
        "| strategy | " + " | ".join(f"batch {b}" for b in batches) + " | memory at the largest |",
        "|---|" + "--:|" * (len(batches) + 1),
    ]
    of = {(p["strategy"], p["batch"]): p for p in found}
    for strategy in strategies:
        cells = []
        for batch in batches:
            own, first = of[strategy, batch], of[strategies[0], batch]
            if "refused" in own:
                cells.append("-")
                continue
            ratio = ""
            if "refused" not in first and strategy != strategies[0]:
                ratio = f" ({own['samples_per_second'] / first['samples_per_second']:.2f})"
            cells.append(f"{own['samples_per_second']:.0f}{ratio}")
        largest = of[strategy, batches[0]]
        memory = "-" if "refused" in largest else f"{largest['memory_bytes_max'] / 2**20:.0f} MiB"
        lines.append(f"| `{strategy}` | " + " | ".join(cells) + f" | {memory} |")
    return "\n".join(lines)


def measured(record, turns):
    run = record["measured"]
    lines = [
        f"## {run['model']} on this machine, measured",
        "",
        f"Seconds of a step, the median of {record['rounds']} round(s) of at least {record['steps']} steps.",
        disturbance(record, turns),
        "",
        "| batch | strategy | ranks | seconds | ratio to one rank |",
        "|--:|---|--:|--:|--:|",
    ]
    for batch in run["batches"]:
        times = [median(t["step_seconds"] for t in c["turns"]) for c in batch["contenders"]]
        for contender, seconds in zip(batch["contenders"], times):
            facts = contender["facts"]
            lines.append(
                f"| {batch['batch']} | `{facts['strategy']}` | {facts['ranks']} | {seconds:.4f}"
                f" | {times[-1] / seconds:.2f} |"
            )
    return "\n".join(lines)


def learned(record):
    lines = [
        "## A transformer on strings of digits",
        "",
        "Encoder and decoder of two layers of 64 channels and 4 heads, Adam at 1e-3 with a cosine, batch 64.",
        "The accuracy is that of single answers of strings that were not trained on, given the right answers",
        "before them; padding counts, and the share of the most frequent answer stands beside it.",
        "",
        "| task | digits | strategy | epochs | accuracy | most frequent | step |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for task in record["tasks"]:
        result = task["result"]
        found = result["epochs"][-1]["validation"]["classification"]
        step = result["step_seconds_median"]
        lines.append(
            f"| {task['task']} | {task['digits']} | `{task['strategy']}` | {task['epochs']}"
            f" | {percent(found['accuracy'])} | {percent(found['largest_share'])}"
            f" | {1000 * step:.1f} ms |"
        )
    return "\n".join(lines)
