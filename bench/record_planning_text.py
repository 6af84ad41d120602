"""The text of a record of planning; measures nothing."""

from contest_text import circumstances


def write(record, raw_name):
    parts = [head(record, raw_name)]
    for ranks in dict.fromkeys(case["ranks"] for case in record["cases"]):
        parts.append(table(ranks, [case for case in record["cases"] if case["ranks"] == ranks]))
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    done = [case["now"] for case in record["cases"]]
    times = [one["processor_seconds"] for one in done if one["finished"]]
    lines = [
        f"# How long a plan takes, {record['started'][:10]}",
        "",
        "Seconds of one core (user and system) that `partita plan --no-io` takes, with as many samples as ranks, and",
        "the step of the best strategy, which is predicted, not run. The machine was shared with other work, so the wall",
        "time, in the raw data, is longer. A plan that took more than"
        f" {record['limit']:.0f} s was interrupted (`>`), and has the best so far.",
        f"Of {len(done)} plans {len(times)} ended by themselves; the longest of these took {max(times, default=0):.1f} s.",
        f"Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def seconds(plan):
    return f"{'' if plan['finished'] else '> '}{plan['processor_seconds']:.1f}"


def step(plan):
    return f"{1e3 * plan['iteration_seconds']:.2f} ms" if "iteration_seconds" in plan else "none"


def table(ranks, cases):
    compared = any("before" in case for case in cases)
    before = ["before, s", "best step before"] if compared else []
    columns = ["model", "machine", "time, s", *before, "best step", "simulated", "strategy"]
    lines = [
        f"## {ranks} ranks",
        "",
        "| " + " | ".join(columns) + " |",
        "|---|---|" + "---:|" * (len(columns) - 3) + "---|",
    ]
    for case in cases:
        now = case["now"]
        was = [seconds(case["before"]), step(case["before"])] if "before" in case else ["", ""][: len(before)]
        strategy = now.get("strategy", "")
        strategy = strategy if len(strategy) <= 60 else strategy[:57] + "..."
        strategy = strategy.replace("|", "\\|")
        cells = [case["model"], case["machine"], seconds(now), *was, step(now)]
        cells += [str(now["candidates"]["simulated"]), f"`{strategy}`"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
