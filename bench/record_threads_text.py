"""The text of a record of threads beside ranks; measures nothing."""

from statistics import median

from contest_text import circumstances, disturbance


def write(record, raw_name):
    turns = [turn for contender in record["contenders"] for turn in contender["turns"]]
    levels = dict.fromkeys(contender["facts"]["level"] for contender in record["contenders"])
    parts = [head(record, raw_name), disturbance(record, turns)]
    parts += [table(record["contenders"], level) for level in levels]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# Threads beside ranks, {record['started'][:10]}",
        "",
        f"Seconds of a training step of ResNet-50 on {record['contenders'][0]['batch']} images of 224x224,"
        f" {record['images']} images an epoch. All take",
        f"turns, {record['rounds']} round(s); shown is the median of the turns, [least .. most], and how many"
        " times faster",
        f"than one thread that is. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def seconds(contender):
    return median(turn["step_seconds"] for turn in contender["turns"])


def table(contenders, level):
    contenders = [c for c in contenders if c["facts"]["level"] == level]
    one = seconds(next(c for c in contenders if c["cores"] == 1))
    lines = [f"## `PARTITA_VECTORS={level}`", "", "| cores | seconds a step | of one thread |", "|---|---:|---:|"]
    for contender in contenders:
        times = [turn["step_seconds"] for turn in contender["turns"]]
        lines.append(
            f"| {contender['facts']['way']} | {seconds(contender):.4f} [{min(times):.4f} .. {max(times):.4f}]"
            f" | {one / seconds(contender):.2f} x |"
        )
    return "\n".join(lines)
