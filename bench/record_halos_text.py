"""The text of a record of halo exchanges; measures nothing."""

from contest_text import circumstances, disturbance, spread, step_seconds


def write(record, raw_name):
    # A rank on the second host is no descendant of the record, which would take it for another process.
    own = [n for n in record["networks"] if n["hosts"] is None]
    turns = [t for n in own for c in n["contenders"] for t in c["turns"]]
    parts = [head(record, raw_name), disturbance(record, turns)]
    parts += [network(n) for n in record["networks"]]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# Halo exchanges, {record['started'][:10]}",
        "",
        "Seconds of a training step of two ranks of one thread that split each sample in space: with",
        "exchanges behind the interior of a convolution (`overlap`, which needs no word) or before it, and",
        "with an exchange for each layer or one for a group of layers. `stack` is twelve 3x3 convolutions",
        f"of 16 filters on images of 256x256. {record['rounds']} round(s), at least {record['steps']} steps"
        " a turn after two that",
        "do not count; shown is the median of the turns, [least .. most], and its ratio to the first line.",
        "Messages, their bytes and flops are those of both programs together. What other processes took is",
        f"known of the turns on one machine. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def network(entry):
    name = entry["model"].removesuffix(".model")
    lines = [
        f"## {name}, batch {entry['batch']}, {entry['hosts'] or 'threads of one machine'}",
        "",
        "| strategy | messages | MB | Gflop | seconds a step | of the first |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    first = entry["contenders"][0]
    for contender in entry["contenders"]:
        lines.append(
            f"| `{contender['facts']['strategy']}` | {contender['messages']}"
            f" | {contender['message_bytes'] / 1e6:.2f} | {contender['flops'] / 1e9:.2f}"
            f" | {spread(contender)}"
            f" | {step_seconds(contender) / step_seconds(first):.3f} |"
        )
    return "\n".join(lines)
