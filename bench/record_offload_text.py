"""The text of a record of loaders and validators; measures nothing."""

from statistics import median

from contest_text import circumstances, disturbance


def write(record, raw_name):
    turns = [turn for contender in record["contenders"] for turn in contender["turns"]]
    parts = [head(record, raw_name), disturbance(record, turns), table(record["contenders"])]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    first = record["contenders"][0]
    lines = [
        f"# Loaders and validators, {record['started'][:10]}",
        "",
        f"Seconds of an epoch of CosmoFlow at {record['size']}^3, batch {first['batch']}, {record['universes']} universes to train on,"
        " with elastic deformation.",
        "The training keeps to one core, loaders and validators to another; each of their pieces or validations is",
        f"delayed as shown. All take turns, {record['rounds']} round(s); shown is the median of the turns. All validation",
        f"losses are equal bit for bit. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def table(contenders):
    inline = epoch(contenders[0])
    lines = [
        "| offloaded | delay | delays of an epoch's pieces | seconds an epoch | of no offload |",
        "|---|---:|---:|---:|---:|",
    ]
    for contender in contenders:
        facts = contender["facts"]
        roles = " and ".join(facts["roles"]) or "nothing"
        seconds = epoch(contender)
        delays = median(turn["delay_seconds"] for turn in contender["turns"])
        lines.append(
            f"| {roles} | {facts['delay_ms']} ms | {delays:.3f} | {seconds:.3f} | {seconds / inline:.2f} x |"
        )
    return "\n".join(lines)


def epoch(contender):
    return median(turn["epoch_seconds"] for turn in contender["turns"])
