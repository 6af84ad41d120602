"""The text of a record of published tables; measures nothing."""

from contest_text import circumstances


def write(record, raw_name):
    parts = [head(record, raw_name), summary(record), *map(table, record["tables"])]
    return "\n\n".join(parts) + "\n"


def head(record, raw_name):
    lines = [
        f"# Predictions of published runs, {record['started'][:10]}",
        "",
        "Error is `predicted / published - 1` of the time of a step; means are of its size. Bounded are the rows to",
        "which no number of a machine or a software was fitted; a test holds their mean to the bound. Shown are rows that",
        "the software or the machine is not described for, as the head of their table says. The authors'",
        "error is that of the model that is published with the same rows. A pair are two rows with as many devices (or",
        "samples) whose published rates are more than 15 % apart; it is right if the same one is predicted to be the",
        f"faster. Where the rows come from stands in the head of `published/TABLE.toml`. Raw data: `{raw_name}`.",
        "",
        *circumstances(record, "no peers"),
    ]
    return "\n".join(lines)


def percent(value):
    return "" if value is None else f"{100 * value:.1f} %"


def summary(record):
    lines = [
        "## Tables",
        "",
        "| table | rows predicted | mean error | bounded rows | bound | shown rows | bound | rows of the authors' model"
        " | theirs | pairs right |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in record["tables"]:
        theirs = percent(one["authors_error"])
        if one["authors_error_all_points"] is not None:
            theirs += f" (all their points {percent(one['authors_error_all_points'])})"
        cells = [
            one["name"],
            f"{one['predicted_rows']} of {len(one['rows'])}",
            percent(one["mean_error"]),
            percent(one["bounded_error"]),
            percent(one["bound"]),
            percent(one["shown_error"]),
            percent(one["shown_bound"]),
            percent(one["modeled_error"]),
            theirs,
            f"{one['pairs_right']} of {one['pairs']}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def milliseconds(seconds):
    return "" if seconds is None else f"{1e3 * seconds:.4g}"


def table(one):
    lines = [
        f"## {one['name']}",
        "",
        one["title"],
        "",
        "| use | network | machine | software | devices | samples | strategy | published ms | predicted ms | error | authors' error |",
        "|---|---|---|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in one["rows"]:
        theirs = row["authors"] and row["authors"] / row["published"] - 1
        software = ", ".join(filter(None, (row["software"], row["precision"])))
        short = lambda path: path.split("/")[-1].split(".")[0]
        cells = [row["use"], short(row["model"]), short(row["machine"]), software]
        cells += [str(row["ranks"]), str(row["batch"]), row["strategy"]]
        cells += [milliseconds(row["published"]), milliseconds(row.get("predicted"))]
        cells += [signed(row["error"]) if "error" in row else "refused", signed(theirs)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def signed(value):
    return "" if value is None else f"{100 * value:+.1f} %"
