"""The text of a record of CosmoFlow's training steps, from its raw data; measures nothing."""

from statistics import median

import roofline
from contest_text import circumstances, disturbance, percent

def write(record, raw_name):
    turns = [t for s in record["sizes"] for c in s["contenders"] for t in c["turns"]]
    parts = [head(record, raw_name), disturbance(record, turns)]
    for size in record["sizes"]:
        parts += [steps_table(size, record["with_torch"]), side_by_side_table(size)]
        parts += [prediction_table(size), roofline.write(size)]
    return "\n\n".join(filter(None, parts)) + "\n"


def head(record, raw_name):
    peer = peer_version(record)
    peer_words = f"PyTorch {peer}" if peer else "**without PyTorch, which this Python lacks**"
    made = ", ".join(f"{s['size']}^3 in {s['dataset_seconds']:.1f} s" for s in record["sizes"])
    lines = [
        f"# Training steps of CosmoFlow, {record['started'][:10]}",
        "",
        "Seconds of a training step (forward, backward, Adam; float32) of `cosmoflow`, Partita and",
        f"PyTorch in turns on the same cores: {record['rounds']} round(s), at least {record['steps']}"
        " steps a turn after two that do",
        "not count. A turn counts with its median step; shown is the median of the turns, [least",
        ".. most]. A step of Partita includes reading the sample from its HDF5 file, PyTorch's",
        f"batch is in memory. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, peer_words),
        f"- Data: 6 universes, made by `partita data cosmology`: {made}",
    ]
    return "\n".join(lines)


def peer_version(record):
    for size in record["sizes"]:
        for contender in of(size, "PyTorch"):
            return contender["facts"]["version"]
    return None


def of(size, program):
    return [c for c in size["contenders"] if c["program"] == program]


def step_seconds(contender):
    return [turn["step_seconds"] for turn in contender["turns"]]


def seconds_per_sample(contender):
    return median(step_seconds(contender)) / contender["batch"]


def rival(contender, size, batches):
    """PyTorch's best per sample with as many threads, at one of `batches`; None without PyTorch."""
    able = (c["cores"] == contender["cores"] and c["batch"] in batches for c in of(size, "PyTorch"))
    same = [c for c, fits in zip(of(size, "PyTorch"), able) if fits]
    return min(same, key=seconds_per_sample, default=None)


def ratio(contender, size, batches):
    other = rival(contender, size, batches)
    if other is None:
        return "-"
    whole = seconds_per_sample(other) / seconds_per_sample(contender)
    per_round = zip(step_seconds(other), step_seconds(contender))
    rounds = [o / other["batch"] / (c / contender["batch"]) for o, c in per_round]
    return f"{whole:.2f} [{min(rounds):.2f} .. {max(rounds):.2f}]"


def steps_table(size, with_torch):
    lines = [f"## cosmoflow@{size['size']}", ""]
    if with_torch:
        lines += [
            "Ratios: samples a second over those of PyTorch's better layout with as many threads,"
            " at the same batch, and at whichever batch of 1 and 2 suits PyTorch better; above 1,"
            " Partita is faster. In brackets round by round.",
            "",
        ]
    lines += [
        "| who | batch | seconds a step | seconds a sample | samples/s | ratio, same batch"
        " | ratio, best batch |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for c in size["contenders"]:
        each, sample = step_seconds(c), seconds_per_sample(c)
        ours = c["program"] == "Partita"
        same, best = (ratio(c, size, b) if ours else "" for b in ((c["batch"],), (1, 2)))
        lines.append(
            f"| {c['name']} | {c['batch']} | {median(each):.4f} [{min(each):.4f} .."
            f" {max(each):.4f}] | {sample:.4f} | {1 / sample:.2f} | {same} | {best} |"
        )
    return "\n".join([*lines, *backend_lines(size)])


def backend_lines(size):
    """Which convolutions PyTorch runs by its slow kernels, where it says so."""
    slow = {}
    for c in of(size, "PyTorch"):
        backends = c["facts"]["convolution_backends"]
        if backends is not None:
            count = sum("slow" in backend.lower() for backend in backends)
            slow[c["batch"]] = max(slow.get(c["batch"], 0), count)
            total = len(backends)
    told = [f"{n} of {total} at batch {batch}" for batch, n in sorted(slow.items())]
    if not any(slow.values()):
        return []
    return [
        "",
        f"Of the convolutions PyTorch runs by its slow kernels (not oneDNN): {', '.join(told)}; it"
        " chooses by batch and shape.",
    ]


def side_by_side_table(size):
    """Two ranks that talk, against as many runs that do not; None without them."""
    alone = next(iter(of(size, "Partita side by side")), None)
    if alone is None:
        return None
    lines = [
        f"Two ranks against {alone['facts']['runs']} one-rank runs side by side, which need not talk"
        " and share only the memory's bandwidth: ratio of samples a second, in brackets round by"
        " round; the aim is 95 %.",
        "",
        "| who | batch | ratio |",
        "|---|---:|---:|",
    ]
    for c in of(size, "Partita"):
        if c["facts"]["ranks"] == alone["facts"]["runs"]:
            per_round = zip(step_seconds(alone), step_seconds(c))
            rounds = [a / alone["batch"] * c["batch"] / own for a, own in per_round]
            whole = seconds_per_sample(alone) / seconds_per_sample(c)
            lines.append(
                f"| {c['name']} | {c['batch']} | {percent(whole)} [{percent(min(rounds))} .."
                f" {percent(max(rounds))}] |"
            )
    return "\n".join(lines)


def prediction_table(size):
    lines = [
        "Predicted (stored before the first step, from kernels measured for this record) and"
        " measured seconds of an iteration; accuracy is 1 - |predicted - measured| / measured:",
        "",
        "| who | predicted | measured | accuracy | accuracy by round |",
        "|---|---:|---:|---:|---:|",
    ]
    for c in of(size, "Partita"):
        iterations = [turn["comparison"]["iteration"] for turn in c["turns"]]
        predicted = median(i["predicted"] for i in iterations)
        measured = median(i["measured"] for i in iterations)
        rounds = ", ".join(percent(accuracy(i["predicted"], i["measured"])) for i in iterations)
        lines.append(
            f"| {c['name']} | {predicted:.4f} | {measured:.4f} |"
            f" {percent(accuracy(predicted, measured))} | {rounds} |"
        )
    return "\n".join(lines)


def accuracy(predicted, measured):
    return 1 - abs(predicted - measured) / measured
