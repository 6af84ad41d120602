"""The text of a record of schedules; measures nothing."""

from contest_text import circumstances


def write(record, raw_name):
    parts = [head(record, raw_name)]
    for entry in record["networks"]:
        parts += [network(entry), wins(entry)]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# Which schedule of a pipeline wins, {record['started'][:10]}",
        "",
        "Predicted samples/s of stages of one rank on lassen, reading left out, by number of stages,",
        "micro-batches, and memory that a rank may fill. Limits are shares of what the largest schedule",
        "takes if it may take all. In a cell stand the winner, its samples/s, and how many times faster",
        "it is than the next, and who does not fit at all. `gems*` is GEMS with as many turns as there are",
        "pairs of micro-batches, `gems` with one turn of each replica.",
        f"Nothing of this was run. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def ranked(cell):
    fit = [one for one in cell["schedules"] if "refusal" not in one]
    return sorted(fit, key=lambda one: -one["samples_per_second"])


def short(name):
    return name.replace("MOST", "")


def shown(cell):
    fit = ranked(cell)
    out = [short(one["schedule"]) for one in cell["schedules"] if "refusal" in one]
    limit = f"{cell['limit'] / 2**20:.0f} MiB: "
    if not fit:
        return limit + "none fits"
    text = f"{limit}**{short(fit[0]['schedule'])}** {fit[0]['samples_per_second']:.1f}"
    others = [one for one in fit[1:] if one["digest"] != fit[0]["digest"]]
    if others:
        ratio = fit[0]["samples_per_second"] / others[0]["samples_per_second"]
        text += f", {ratio:.2f} x {short(others[0]['schedule'])}"
    return text + (f"; not {', '.join(out)}" if out else "")


def network(entry):
    shares = list(dict.fromkeys(cell["share"] for cell in entry["cells"]))
    lines = [
        f"## {entry['model']}, {entry['samples']} sample(s) a micro-batch",
        "",
        "| stages | micro-batches | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |",
        "|---:|---:|" + "---|" * len(shares),
    ]
    for key in dict.fromkeys((cell["stages"], cell["micro"]) for cell in entry["cells"]):
        row = [cell for cell in entry["cells"] if (cell["stages"], cell["micro"]) == key]
        lines.append(f"| {key[0]} | {key[1]} | " + " | ".join(map(shown, row)) + " |")
    return "\n".join(lines)


def wins(entry):
    """How often each wins, by share of the memory."""
    lines = []
    for share in dict.fromkeys(cell["share"] for cell in entry["cells"]):
        cells = [cell for cell in entry["cells"] if cell["share"] == share]
        firsts = [short(ranked(cell)[0]["schedule"]) for cell in cells if ranked(cell)]
        counts = sorted(((firsts.count(name), name) for name in set(firsts)), reverse=True)
        text = ", ".join(f"{name} {count}" for count, name in counts) or "none"
        lines.append(f"- {100 * share:.0f} % of the memory: {text}, of {len(cells)} cells")
    return "\n".join(["Winners:", "", *lines])
