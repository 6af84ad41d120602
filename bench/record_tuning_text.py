"""The text of a record of tuned kernels, from its raw data; measures nothing."""

from collections import Counter
from statistics import median

from contest_text import circumstances, disturbance, percent, spread, step_seconds

MEBIBYTE = 2**20


def write(record, raw_name):
    turns = [turn for n in record["networks"] for c in n["contenders"] for turn in c["turns"]]
    deep = record["programme"]
    if deep:
        turns += [turn for lowering in deep["lowerings"] for turn in lowering["turns"]]
    parts = [head(record, raw_name), disturbance(record, turns)]
    for entry in record["networks"]:
        parts += [title(entry), steps(entry), gains(entry), choices(entry)]
    if deep:
        parts.append(programme(deep))
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# Tuned kernels, {record['started'][:10]}",
        "",
        "Seconds of a training step (forward, backward, Adam; float32) on one rank under limits of the workspace of"
        " convolutions, with what `partita tune` measured: undivided implementations alone, or, into a copy of that"
        f" cache, micro-batches of powers of two besides. All take turns, {record['rounds']} round(s), at least {record['steps']} steps a"
        " turn; shown is the median of the turns, [least .. most]. Predicted is what `tune` says of the step, without"
        f" input. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def title(entry):
    tuned = ", ".join(f"{policy} in {t['seconds']:.0f} s" for policy, t in entry["tuned"].items())
    some = next(iter(entry["tuned"].values()))
    lines = [
        f"## {entry['model']}, batch {entry['batch']}, {entry['threads']} thread(s)",
        "",
        f"{some['simd']}, {len(some['kernels'])} convolutions in the step. Tuned: {tuned}.",
    ]
    for policy, own in entry["tuned"].items():
        for total in own["too_long"]:
            lines += ["", f"Left out: `workspace_total={total}` ({policy}), which took too long to lower."]
    return "\n".join(lines)


def untuned(entry):
    return next(c for c in entry["contenders"] if c["facts"]["workspace"] == "workspace=off")


def predictions(tuned):
    """By the setting of a strategy."""
    return {step["setting"]: step for step in tuned["steps"]}


def steps(entry):
    lines = [
        "Gain is over `workspace=off`: its time by that of the row, less one. Accuracy is 1 - |predicted - measured| /"
        " measured. Workspace is the largest of a kernel; memory is that of the rank as predicted by `tune`, and the"
        " largest resident set that was measured.",
        "",
        "| measured kernels | limit | predicted, s | measured, s | accuracy | predicted gain | measured gain"
        " | workspace, MiB | memory, MiB | measured, MiB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    off = untuned(entry)
    for contender in entry["contenders"]:
        policy, workspace = contender["facts"]["policy"], contender["facts"]["workspace"]
        known = predictions(entry["tuned"][policy])
        step, base = known[workspace], known["workspace=off"]
        measured = step_seconds(contender)
        accuracy = 1 - abs(step["step_seconds"] - measured) / measured
        predicted_gain = base["step_seconds"] / step["step_seconds"] - 1
        cells = [policy if contender is not off else "none", f"`{workspace}`", f"{step['step_seconds']:.4f}"]
        cells += [spread(contender), percent(accuracy), percent(predicted_gain), gain(off, contender)]
        cells += [f"{step[key] / MEBIBYTE:.1f}" for key in ("workspace_bytes_max", "memory_bytes")]
        lines.append(f"| {' | '.join(cells)} | {resident(contender)} |")
    return "\n".join(lines)


def resident(contender):
    """The most of all turns."""
    peaks = [turn["memory"].get("measured_peak_bytes") for turn in contender["turns"]]
    known = [peak for peak in peaks if peak is not None]
    return f"{max(known) / MEBIBYTE:.1f}" if known else "-"


def gain(other, contender):
    """In brackets round by round."""
    pairs = zip(other["turns"], contender["turns"])
    rounds = [o["step_seconds"] / c["step_seconds"] - 1 for o, c in pairs]
    whole = step_seconds(other) / step_seconds(contender) - 1
    return f"{percent(whole)} [{percent(min(rounds))} .. {percent(max(rounds))}]"


def gains(entry):
    lines = [
        "What micro-batches gain over undivided kernels under the same limit; where both are the same program the"
        " measured gain is noise:",
        "",
        "| limit | predicted gain | measured gain | programs |",
        "|---|---:|---:|---|",
    ]
    whole, micro = {}, {}
    for contender in entry["contenders"]:
        into = micro if contender["facts"]["policy"] == "power-of-two" else whole
        into[contender["facts"]["workspace"]] = contender
    for workspace, contender in micro.items():
        if workspace not in whole:
            continue
        other = whole[workspace]
        seconds = [
            predictions(entry["tuned"][c["facts"]["policy"]])[workspace]["step_seconds"]
            for c in (other, contender)
        ]
        same = {t["digest"] for t in other["turns"]} == {t["digest"] for t in contender["turns"]}
        predicted = percent(seconds[0] / seconds[1] - 1)
        told = "the same" if same else "differ"
        lines.append(f"| `{workspace}` | {predicted} | {gain(other, contender)} | {told} |")
    return "\n".join(lines)


def choices(entry):
    """What is pinned with what the arena leaves free."""
    lines = ["Convolutions by what `workspace=live` pins:", ""]
    for policy, tuned in entry["tuned"].items():
        names = [choice["configuration"] for k in tuned["kernels"] if (choice := k["choice"])]
        counts = Counter(names).most_common()
        told = ", ".join(f"`{name}` {count}" for name, count in counts)
        lines.append(f"- {policy}: {told}")
    return "\n".join(lines)


def programme(deep):
    tuned = deep["tuned"]
    points = [len(kernel["frontier"]) for kernel in tuned["kernels"]]
    base = deep["lowerings"][0]
    lines = [
        f"## The integer programme of {deep['model']}, batch {deep['batch']}",
        "",
        f"`partita lower` with each limit, in turns, {len(base['turns'])} of each; the difference to `workspace=off` is"
        f" the choice. {len(points)} convolutions with {sum(points)} configurations worth having, at most"
        f" {max(points)} each ({tuned['policy']}), measured by `tune` in {tuned['seconds']:.0f} s. A lowering was ended"
        f" after {deep['seconds_max']:.0f} s.",
        "",
        "| limit | seconds | more than off | memory, MiB | program |",
        "|---|---:|---:|---:|---|",
    ]
    names = {}
    for lowering in deep["lowerings"]:
        done = [turn for turn in lowering["turns"] if "seconds" in turn]
        if len(done) < len(lowering["turns"]):
            lines.append(f"| `{lowering['workspace']}` | more than {deep['seconds_max']:.0f} | - | - | - |")
            continue
        times = [turn["seconds"] for turn in done]
        more = median(times) - median(turn["seconds"] for turn in base["turns"])
        memory = done[0]["memory_bytes_max"] / MEBIBYTE
        # Where nothing can be chosen the program is that of an earlier row.
        program = names.setdefault(done[0]["digest"], lowering["workspace"])
        told = "its own" if program == lowering["workspace"] else f"that of `{program}`"
        lines.append(
            f"| `{lowering['workspace']}` | {median(times):.3f} [{min(times):.3f} .. {max(times):.3f}] |"
            f" {more:.3f} | {memory:.1f} | {told} |"
        )
    return "\n".join(lines)
