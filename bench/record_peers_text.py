"""The text of a record beside PyTorch's DistributedDataParallel and JAX; measures nothing."""

from statistics import median

from contest_text import circumstances, disturbance


def write(record, raw_name):
    turns = [t for n in record["networks"] for c in n["contenders"] for t in c["turns"]]
    parts = [head(record, raw_name), disturbance(record, turns)]
    parts += [network(n) for n in record["networks"]]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    versions = [f"{name} {version(record, name)}" for name in ("PyTorch", "JAX")]
    lines = [
        f"# Training steps beside PyTorch DDP and JAX, {record['started'][:10]}",
        "",
        "Seconds of a training step (forward, backward, Adam; float32) on two cores, one batch for all:",
        "Partita with two ranks of one thread, PyTorch's DistributedDataParallel with two processes of",
        "one thread over gloo, JAX with two host devices. PyTorch takes batch-norm statistics of each",
        "process's samples, Partita and JAX those of the whole batch. A step of Partita includes reading",
        f"its samples from files; the peers' batch is in memory. {record['rounds']} rounds, but one of single",
        "steps of 3D U-Net; shown is the median of the turns, [least .. most]. Raw data:",
        f"`{raw_name}`.",
        "",
        *circumstances(record, ", ".join(versions)),
    ]
    return "\n".join(lines)


def version(record, program):
    for entry in record["networks"]:
        for contender in of(entry, program):
            return contender["facts"]["version"]
    return "left out, as this Python lacks it"


def of(entry, program):
    return [c for c in entry["contenders"] if c["program"] == program]


def step_seconds(contender):
    return [turn["step_seconds"] for turn in contender["turns"]]


def seconds(contender):
    return median(step_seconds(contender))


def ratio(rival, contender):
    """How many times the contender's rate is the rival's, in brackets round by round."""
    rounds = [o / c for o, c in zip(step_seconds(rival), step_seconds(contender))]
    return f"{seconds(rival) / seconds(contender):.2f} [{min(rounds):.2f} .. {max(rounds):.2f}]"


def network(entry):
    lines = [
        f"## {entry['model']}, batch {entry['batch']}",
        "",
        f"{entry['parameters']:,} parameters; {entry['training_flops'] * entry['batch'] / 1e9:,.1f}"
        " Gflop a step.",
        "",
        "| who | seconds a step | samples/s | times the better PyTorch | times the better JAX |",
        "|---|---:|---:|---:|---:|",
    ]
    rivals = {program: min(of(entry, program), key=seconds, default=None) for program in ("PyTorch", "JAX")}
    for contender in entry["contenders"]:
        times = step_seconds(contender)
        ratios = ["", ""]
        if contender["program"] == "Partita":
            ratios = [ratio(rival, contender) if rival else "-" for rival in rivals.values()]
        lines.append(
            f"| {contender['name']} | {seconds(contender):.4f} [{min(times):.4f} .. {max(times):.4f}]"
            f" | {entry['batch'] / seconds(contender):.2f} | {ratios[0]} | {ratios[1]} |"
        )
    present = [rival for rival in rivals.values() if rival]
    if present:
        best, rival = min(of(entry, "Partita"), key=seconds), min(present, key=seconds)
        lines += ["", f"The better peer is {rival['name']}; Partita's best, `{best['facts']['strategy']}`,"]
        lines += [f"does {ratio(rival, best)} times its samples a second; the aim is 2."]
    for contender in of(entry, "JAX"):
        found = contender["facts"]["collectives"]
        words = ", ".join(f"{count} {kind}" for kind, count in found.items() if count)
        lines += ["", f"{contender['name']}: its program has {words}."]
    return "\n".join(lines)
