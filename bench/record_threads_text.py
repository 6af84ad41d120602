"""The text of a record of threads beside ranks; measures nothing."""

from contest_text import circumstances, disturbance, spread, step_seconds


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


def table(contenders, level):
    contenders = [c for c in contenders if c["facts"]["level"] == level]
    one = step_seconds(next(c for c in contenders if c["cores"] == 1))
    lines = [f"## `PARTITA_VECTORS={level}`", "", "| cores | seconds a step | of one thread |", "|---|---:|---:|"]
    for contender in contenders:
        lines.append(
            f"| {contender['facts']['way']} | {spread(contender)}"
            f" | {one / step_seconds(contender):.2f} x |"
        )
    return "\n".join(lines)
