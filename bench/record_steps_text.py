"""The text of a record of tuned training steps beside PyTorch; measures nothing."""

from contest_text import circumstances, disturbance, spread, step_seconds


def write(record, raw_name):
    settings = [setting for network in record["networks"] for setting in network["settings"]]
    turns = [turn for s in settings for c in s["contenders"] for turn in c["turns"]]
    parts = [head(record, raw_name), disturbance(record, turns), summary(record)]
    parts += [network(entry) for entry in record["networks"]]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# Tuned training steps beside PyTorch, {record['started'][:10]}",
        "",
        "Seconds of a training step (forward, backward, Adam; float32) of one process, all contenders in turns"
        f" on the same cores: {record['rounds']} round(s), {record['steps']} steps a turn (of long ones fewer). Shown is"
        " the median of the turns, [least .. most]. `workspace=off` is untuned; before the others train,"
        " `partita tune` has measured. At AVX2, environment variables keep PyTorch and its libraries to that"
        " level. A step of Partita includes reading its samples from files; PyTorch's batch is in memory."
        f" Raw data: `{raw_name}`.",
        "",
        *circumstances(record, peer_version(record)),
    ]
    if record["with_torch"] and not record["with_compile"]:
        lines.append("- **torch.compile was not asked for.**")
    return "\n".join(lines)


def peer_version(record):
    for entry in record["networks"]:
        for setting in entry["settings"]:
            for contender in of(setting, "PyTorch"):
                return f"PyTorch {contender['facts']['version']}"
    return "**without PyTorch**"


def of(setting, program):
    return [c for c in setting["contenders"] if c["program"] == program]


def with_workspace(setting, workspace):
    return next(c for c in of(setting, "Partita") if c["facts"]["workspace"] == workspace)


def rival(setting):
    return min(of(setting, "PyTorch"), key=step_seconds, default=None)


def ratio(other, contender):
    """How many times the contender's rate is the other's, in brackets round by round."""
    if other is None:
        return "-"
    pairs = zip(other["turns"], contender["turns"])
    rounds = [o["step_seconds"] / c["step_seconds"] for o, c in pairs]
    whole = step_seconds(other) / step_seconds(contender)
    return f"{whole:.2f} [{min(rounds):.2f} .. {max(rounds):.2f}]"


def summary(record):
    lines = [
        "Seconds of a step, and how many times the speed of PyTorch's fastest configuration that is.",
        "",
        "| network | batch | level | threads | untuned | live | 64 MiB | PyTorch's best, s | which | untuned / PyTorch"
        " | live / PyTorch | live / untuned |",
        "|---|---:|---|---:|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for entry in record["networks"]:
        for setting in entry["settings"]:
            off, live, some = (with_workspace(setting, w) for w in ("off", "live", "64MiB"))
            best = rival(setting)
            times = [f"{step_seconds(c):.4f}" for c in (off, live, some)]
            peer = [f"{step_seconds(best):.4f}", best["name"]] if best else ["-", "-"]
            ratios = [ratio(best, off), ratio(best, live), ratio(off, live)]
            first = [entry["model"], entry["batch"], setting["level"], setting["threads"]]
            lines.append(f"| {' | '.join(map(str, first + times + peer + ratios))} |")
    return "\n".join(lines)


def network(entry):
    parts = [f"## {entry['model']}, batch {entry['batch']}"]
    parts += [table(setting) for setting in entry["settings"]]
    return "\n\n".join(parts)


def table(setting):
    off, best = with_workspace(setting, "off"), rival(setting)
    lines = [
        f"{setting['level']}, {setting['threads']} thread(s); tuned"
        f" ({setting['tuned']['policy']}) in {setting['tuned']['seconds']:.0f} s."
        " Predicted is what `tune` says, without input; memory is the measured resident set.",
        "",
        "| who | seconds a step | predicted | times untuned | times PyTorch's best | memory, MiB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    predicted = {step["workspace"]: step["step_seconds"] for step in setting["tuned"]["steps"]}
    for contender in setting["contenders"]:
        cells = ["", "", "", ""]
        if contender["program"] == "Partita":
            seconds = predicted.get(contender["facts"]["workspace"])
            cells = ["-" if seconds is None else f"{seconds:.4f}", ratio(off, contender)]
            cells += [ratio(best, contender), memory(contender)]
        lines.append(f"| {contender['name']} | {spread(contender)} | {' | '.join(cells)} |")
    same = {turn["digest"] for turn in off["turns"]}
    for contender in of(setting, "Partita"):
        if contender is not off and {turn["digest"] for turn in contender["turns"]} == same:
            lines += ["", f"{contender['name']} is the same program as untuned: nothing gains."]
    lines += [line for reason in setting["left_out"] for line in ("", f"Left out: {reason}")]
    return "\n".join(lines)


def memory(contender):
    """The largest resident set of all turns."""
    peaks = [turn["memory"].get("measured_peak_bytes") for turn in contender["turns"]]
    known = [peak for peak in peaks if peak is not None]
    return f"{max(known) / 2**20:.1f}" if known else "-"
