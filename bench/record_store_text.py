"""The text of a record of samples in memory; measures nothing."""

from contest_text import circumstances, disturbance, spread, step_seconds


def write(record, raw_name):
    turns = [turn for contender in record["contenders"] for turn in contender["turns"]]
    return "\n\n".join([head(record, raw_name), disturbance(record, turns), table(record)]) + "\n"


def head(record, raw_name):
    lines = [
        f"# Samples in memory, {record['started'][:10]}",
        "",
        f"Seconds of a training step of {record['model']}, batch {record['contenders'][0]['batch']}, with samples from"
        " files, from memory, and synthetic ones. All take turns,",
        f"{record['rounds']} round(s); shown is the median of the turns, [least .. most]. Bytes are those of the last"
        " epoch of a turn, the wait is that of the rank that",
        "waited longest for samples in it. `of synthetic` is the speed beside that of synthetic samples under the same"
        f" strategy. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def table(record):
    lines = [
        "| ranks | strategy | store | seconds a step | samples/s | of synthetic | from files | from other ranks | wait |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    way = lambda contender: (contender["facts"]["ranks"], contender["facts"]["strategy"])
    synthetic = {
        way(contender): step_seconds(contender)
        for contender in record["contenders"]
        if contender["facts"]["store"] == "synthetic"
    }
    for contender in record["contenders"]:
        facts, last = contender["facts"], contender["turns"][-1]["epochs"][-1]
        rate = contender["batch"] / step_seconds(contender)
        share = 100 * synthetic[way(contender)] / step_seconds(contender)
        lines.append(
            f"| {facts['ranks']} | `{facts['strategy']}` | {facts['store']} | {spread(contender)} | {rate:.2f} | {share:.1f} %"
            f" | {last['read_bytes']} B | {last['received_bytes']} B | {1e3 * last['wait_seconds']:.1f} ms |"
        )
    return "\n".join(lines)
