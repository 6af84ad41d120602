"""The text of a record of the largest images; measures nothing."""

from contest_text import circumstances


def write(record, raw_name):
    parts = [head(record, raw_name)]
    models = dict.fromkeys(entry["model"] for entry in record["ladder"])
    parts += [ladder(record, model) for model in models]
    parts += [slow(record), confirmed(record)]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# The largest image under a limit of memory, {record['started'][:10]}",
        "",
        "Sides of square images double until the program of a training step does not fit into the memory",
        f"of a rank; shown is the last that does. Batch {record['batch']}, Adam, one-precision floats.",
        "The programs are lowered and laid out in memory, not estimated; layers of stages are chosen",
        "under the limit, and where none fit, the least need is told. Nothing here was run on such",
        f"machines; what was run stands at the end. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def ladder(record, model):
    entries = [entry for entry in record["ladder"] if entry["model"] == model]
    limits = sorted({entry["limit_gb"] for entry in entries})
    lines = [
        f"## {model}",
        "",
        "| | ranks | strategy | " + " | ".join(f"{limit} GB" for limit in limits) + " | the next needs |",
        "|---|---:|---|" + "---:|" * (len(limits) + 1),
    ]
    for strategy in dict.fromkeys(entry["strategy"] for entry in entries):
        row = {entry["limit_gb"]: entry for entry in entries if entry["strategy"] == strategy}
        first = row[limits[0]]
        sizes = " | ".join(str(row[limit]["largest"] or "none") for limit in limits)
        lines.append(
            f"| {first['name']} | {first['ranks']} | {quoted(first['strategy'])} | {sizes} | {need(row[limits[-1]])} |"
        )
    return "\n".join(lines)


def quoted(strategy):
    """In a cell of a table."""
    return "`" + strategy.replace("|", "\\|") + "`"


def need(entry):
    """What the first size that did not fit the largest limit needs."""
    last = entry["steps"][-1]
    if last["fits"] or "is not possible" in last.get("refusal", ""):
        return "no larger size in the zoo"
    if "memory_bytes_max" in last:
        return f"{last['memory_bytes_max'] / 1e9:.0f} GB"
    return last["least"] or last["refusal"].split("\n")[0]


def slow(record):
    steps = [(step["seconds"], step["size"], entry) for entry in record["ladder"] for step in entry["steps"]]
    seconds, size, entry = max(steps, key=lambda step: step[0])
    return (
        f"To choose the stages and lower a program took at most {seconds:.1f} s of one core"
        f" ({entry['model']}@{size}, {entry['name']}, {entry['ranks']} ranks)."
    )


def confirmed(record):
    lines = [
        "## Trained under limits of some MiB",
        "",
        f"Two steps of batch {record['small_batch']} with ranks as threads, at each size until one is",
        "refused before any rank starts. Predicted is the sum of the arenas of all ranks, measured the",
        "largest resident set of the process above what it was before.",
        "",
        "| model | ranks | limit a rank | strategy | largest trained | largest arena | all arenas | resident |"
        " of predicted | refused |",
        "|---|---:|---:|---|---:|---:|---:|---:|---:|---|",
    ]
    lines += [row(entry) for entry in record["confirmed"]]
    return "\n".join(lines)


def row(entry):
    ran = [step for step in entry["steps"] if "result" in step]
    refused = [step for step in entry["steps"] if "refusal" in step]
    refusal = f"{refused[0]['size']}" if refused else "nothing"
    cells = [entry["model"], str(entry["ranks"]), f"{entry['limit_mib']} MiB", quoted(entry["strategy"])]
    if not ran:
        return "| " + " | ".join([*cells, "none", "", "", "", "", refusal]) + " |"
    result = ran[-1]["result"]
    memory = result["memory"]
    all_of_them, peak = memory["predicted_arena_bytes"], memory["measured_peak_bytes"]
    cells += [
        str(ran[-1]["size"]),
        f"{memory['predicted_arena_bytes_max'] / 2**20:.1f} MiB",
        f"{all_of_them / 2**20:.1f} MiB",
        f"{peak / 2**20:.1f} MiB" if peak else "not known",
        f"{peak / all_of_them:.2f}" if peak else "",
        refusal,
    ]
    return "| " + " | ".join(cells) + " |"
