"""The text of a record of accuracy; measures nothing."""

import math
from itertools import combinations
from statistics import mean, median, stdev

from contest_text import circumstances


def write(record, raw_name):
    cases = [figures(case) for case in record["cases"]]
    parts = [head(record, raw_name), summary(cases), best(cases)]
    for world, model in dict.fromkeys((case["world"], case["model"]) for case in cases):
        parts.append(table([c for c in cases if (c["world"], c["model"]) == (world, model)]))
    parts += [crowded(record["crowded"]), calibrations(record)]
    return "\n\n".join(parts) + "\n"


def figures(case):
    steps = [turn["step_seconds"] for turn in case["turns"]]
    all_predicted = [one["iteration_seconds"] for one in case["predictions"]]
    measured, predicted = median(steps), median(all_predicted)
    error = median(one / step - 1 for one, step in zip(all_predicted, steps, strict=True))
    return case | {
        "measured": measured,
        "predicted": predicted,
        "accuracy": 1 - abs(error),
        "error": error,
        "noise": deviation(steps),
        "predictions_noise": deviation(all_predicted),
        "others": max(turn.get("other_cores", 0) + turn.get("stolen_cores", 0) for turn in case["turns"]),
    }


def deviation(seconds):
    """The standard deviation, as a share of the middle."""
    return stdev(seconds) / median(seconds) if len(seconds) > 1 else 0.0


def head(record, raw_name):
    return "\n".join([
        f"# How right predictions of a training step are, {record['started'][:10]}",
        "",
        "Accuracy is `1 - |predicted - measured| / measured`. Calibrations, predictions and runs are processes of",
        f"their own. In each of {record['rounds']} rounds calibrations were made from nothing, right before the",
        "networks that are predicted by them; then, network by network, all predictions were stored before the",
        f"first run. A run counts with the median of its steps (at least {record['steps']}, and {record['turn_seconds']:g} s of them;",
        "two more not counted), held against the prediction of its round; a case counts with the middle error of",
        "its rounds. Times and memory shown are the middle ones; noise is their standard deviation. Ranks have one",
        "thread and one core each. `menu`: the very kernels were measured; `held out`: they are estimated by laws",
        "fitted to kernels of other models, sizes or batches",
        f"({', '.join(record['held_out_from'])}).",
        f"Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ])


def percent(share):
    return f"{100 * share:.1f} %"


def summary(cases):
    groups = {
        "all": cases,
        "menu": [c for c in cases if not c["held_out"]],
        "held out": [c for c in cases if c["held_out"]],
        "threads": [c for c in cases if c["world"] == "threads"],
        "MPI": [c for c in cases if c["world"] == "mpi"],
    }
    columns = "cases | number | mean accuracy | least | mean error | noise of runs | of predictions | under 85 % beyond noise"
    lines = ["## Summary", "", f"| {columns} |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for name, some in groups.items():
        if not some:
            continue
        low = [c for c in some if c["accuracy"] + c["noise"] < 0.85]
        lines.append(
            f"| {name} | {len(some)} | {percent(mean(c['accuracy'] for c in some))} "
            f"| {percent(min(c['accuracy'] for c in some))} | {percent(mean(c['error'] for c in some))} "
            f"| {percent(mean(c['noise'] for c in some))} | {percent(mean(c['predictions_noise'] for c in some))} "
            f"| {len(low)} |"
        )
    share = len(groups["held out"]) / len(cases)
    lines += ["", f"Held out are {percent(share)} of the cases.", *sureness(cases), *speeds(cases)]
    return "\n".join(lines)


def sureness(cases):
    """How many runs lie in the interval of their prediction; nothing in records that have none."""
    runs = [pair for case in cases for pair in zip(case["predictions"], case["turns"], strict=True)]
    runs = [(one["interval"], turn["step_seconds"]) for one, turn in runs if "interval" in one]
    if not runs:
        return []
    inside = sum(one["low_seconds"] <= step <= one["high_seconds"] for one, step in runs)
    width = median(math.sqrt(one["high_seconds"] / one["low_seconds"]) for one, _ in runs) - 1
    return [f"Of {len(runs)} runs {percent(inside / len(runs))} lie in their interval of 90 %, of ±{percent(width)} (median)."]


# Memory whose speed differs by no more than this is as fast as before.
SAME_SPEED = 0.1


def speeds(cases):
    """How right predictions are where the memory was as fast in the run as when its kernels were measured; nothing in
    records that do not know it."""
    runs = [pair for case in cases for pair in zip(case["predictions"], case["turns"], strict=True)]
    runs = [(one, turn) for one, turn in runs if "triad_gbytes" in one and "triad_gbytes" in turn]
    if not runs:
        return []
    same = [abs(turn["triad_gbytes"] / one["triad_gbytes"] - 1) <= SAME_SPEED for one, turn in runs]
    accuracies = [1 - abs(one["iteration_seconds"] / turn["step_seconds"] - 1) for one, turn in runs]
    every = [one["triad_gbytes"] for pair in runs for one in pair]
    lines = [
        "",
        f"The memory's speed, a triad on both cores, was between {min(every):.0f} and {max(every):.0f} GB/s: other machines",
        "of the host share it.",
    ]
    for wanted, words in ((True, "at most"), (False, "more than")):
        some = [accuracy for accuracy, is_same in zip(accuracies, same) if is_same == wanted]
        if some:
            lines.append(
                f"Of runs in which it differed {words} {percent(SAME_SPEED)} from that when their kernels were measured,"
                f" {len(some)} of {len(runs)}, the mean accuracy is {percent(mean(some))}."
            )
    return lines


def best(cases):
    """Whether what is predicted to be best on two ranks is."""
    lines = ["## The best of two ranks", "", "| model | world | predicted best | measured best | slower by | noise |"]
    lines.append("|---|---|---|---|---:|---:|")
    for model, world in dict.fromkeys((case["model"], case["world"]) for case in cases):
        some = [c for c in cases if (c["model"], c["world"]) == (model, world) and c["ranks"] == 2]
        if len(some) < 2:
            continue
        chosen = min(some, key=lambda c: c["predicted"])
        fastest = min(some, key=lambda c: c["measured"])
        slower = chosen["measured"] / fastest["measured"] - 1
        noise = max(chosen["noise"], fastest["noise"])
        verdict = "" if slower <= max(0.03, noise) else " (**more**)"
        lines.append(
            f"| {model} | {world} | {chosen['strategy']} | {fastest['strategy']} | {percent(slower)}{verdict} "
            f"| {percent(noise)} |"
        )
    return "\n".join(lines)


def table(cases):
    first = cases[0]
    kind = "held out" if first["held_out"] else "menu"
    lines = [
        f"## {first['model']}, batch {first['batch']}, {first['world']}, {kind}",
        "",
        "| strategy | predicted ms | noise | measured ms | noise | accuracy | triad GB/s, kernels / run "
        "| other cores busy | memory predicted / measured MiB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for case in cases:
        shown = memory_words([turn["memory"] for turn in case["turns"]])
        lines.append(
            f"| {case['strategy']} | {1e3 * case['predicted']:.1f} | {percent(case['predictions_noise'])} "
            f"| {1e3 * case['measured']:.1f} | {percent(case['noise'])} | {percent(case['accuracy'])} "
            f"| {speed_words(case)} | {case['others']:.2f} | {shown} |"
        )
    return "\n".join(lines)


def speed_words(case):
    """The middle of the rounds."""
    both = [[one.get("triad_gbytes") for one in case[key]] for key in ("predictions", "turns")]
    if any(speed is None for speeds_of in both for speed in speeds_of):
        return ""
    return " / ".join(f"{median(speeds_of):.0f}" for speeds_of in both)


def memory_words(turns):
    """The middle of the turns."""
    if any(not turn.get("predicted_bytes") or not turn.get("measured_peak_bytes") for turn in turns):
        return ""
    predicted, measured = (median(turn[key] for turn in turns) for key in ("predicted_bytes", "measured_peak_bytes"))
    return f"{predicted / 2**20:.1f} / {measured / 2**20:.1f} ({100 * (predicted / measured - 1):+.1f} %)"


def crowded(entries):
    lines = [
        "## More ranks than cores",
        "",
        "Messages, bytes and flops that ranks counted equal the program's, or the run would have failed.",
        "Core-seconds of a step: predicted, those of all kernels with all cores at work; measured, what the",
        "processors worked longer for a run of more steps, each with its share of the validations.",
        "",
        "| strategy | ranks | same program | largest arena predicted / made | core-seconds predicted | measured |",
        "|---|---:|---|---|---:|---:|",
    ]
    for one in entries:
        same = "yes" if one["digests"][0] == one["digests"][1] else "**no**"
        arenas = f"{one['arena_bytes_max'][0]} / {one['arena_bytes_max'][1]}"
        lines.append(
            f"| {one['strategy']} | {one['ranks']} | {same} | {arenas} "
            f"| {one['core_seconds_predicted']:.3f} | {one['core_seconds_measured']:.3f} |"
        )
    right, apart = order(entries)
    lines += ["", f"Of {apart} pairs whose measured core-seconds are more than 10 % apart, {right} are predicted in that order."]
    return "\n".join(lines)


def order(entries):
    """Pairs in the right order, and pairs that are clearly apart."""
    right = apart = 0
    for a, b in combinations(entries, 2):
        least, most = sorted((a, b), key=lambda one: one["core_seconds_measured"])
        if most["core_seconds_measured"] > 1.1 * least["core_seconds_measured"]:
            apart += 1
            right += most["core_seconds_predicted"] > least["core_seconds_predicted"]
    return right, apart


def calibrations(record):
    lines = ["## Calibrations", "", "Errors of kernels that the laws had not seen, a fifth of each family at a time.", ""]
    lines += ["| calibration | kernels | world | median error | by time | total |", "|---|---:|---|---:|---:|---:|"]
    for name, answer in record["calibrations"].items():
        error = answer["validation"]
        lines.append(
            f"| {name} | {answer['kernels']} | {answer['world']} | {percent(error['median'])} "
            f"| {percent(error['mean_by_time'])} | {percent(error['total'])} |"
        )
    return "\n".join(lines)
