"""Records what is predicted for the rows of all tables in published/, beside what was measured there.

Every row is one `partita predict` with the machine, software, precision and optimizer that its table or the
row itself names, without reading unless the table names its `io`. Error is predicted / published - 1, of the time of a step. Bounded are the
rows with use = "predict"; no number of a machine or a software was fitted to them. The authors' error is that of
the model that is published with a row. Pairs are rows of one table and one network with as many devices (or
samples, where the table says so) whose published rates are more than 15 % apart; a pair is right if the same
one is predicted to be the faster.

A row that the binary refuses, since it lacks the machine or the option, counts as not predicted.

Writes records/<date>-published.md and, with all raw figures, the same name with .json.
"""

import argparse
import json
import tomllib
from statistics import mean

import contest
import record_published_text
from contest import ROOT, say
from record_ladder import asked

FOLDER = ROOT / "published"
# Published rates closer than this are not ranked.
APART = 1.15


def of(table, row, key):
    return row.get(key, table.get(key))


def own(name):
    """A file that lies beside the tables, or a name that the binary knows."""
    return str(FOLDER / name) if "/" in name else name


def with_settings(strategy, settings):
    """A strategy with settings of all layers before those of some."""
    every, mark, some = strategy.partition(";")
    return f"{every},{settings}{mark}{some}"


def profile(name, table, folder):
    """The profile of this name; with the table's `spatial_io`, if it has one, as a file in the folder."""
    if "spatial_io" not in table:
        return name
    source = f'spatial_io = {{ value = {str(table["spatial_io"]).lower()}, source = "the table" }}'
    text = (ROOT / "software" / f"{name}.toml").read_text()
    path = folder / f"{name}.toml"
    path.write_text(text.replace("data_store", f"{source}\ndata_store", 1))
    return str(path)


def words(table, row, folder):
    strategy, software = row["strategy"], of(table, row, "software")
    options = list(row.get("more", []))
    if software and "=" in software:
        strategy = with_settings(strategy, software)
    elif software:
        options += ["--software", profile(software, table, folder)]
    for key in ("precision", "optimizer"):
        if of(table, row, key):
            options += [f"--{key}", of(table, row, key)]
    named = ["predict", own(of(table, row, "model")), "--machine", own(of(table, row, "machine"))]
    sizes = ["--ranks", row["ranks"], "--batch", row["batch"], "--strategy", strategy]
    return named + sizes + ["--io", table.get("io", "none"), "--json", *options]


def published_seconds(row):
    if "milliseconds" in row:
        return row["milliseconds"] / 1e3
    return row["batch"] / row["samples_per_second"]


def authors_seconds(row):
    if "authors" in row:
        return row["authors"] / 1e3
    rate = row.get("authors_samples_per_second")
    return rate and row["batch"] / rate


def predicted(options, folder, table, row):
    keys = ("model", "machine", "software", "precision")
    case = {key: of(table, row, key) for key in keys}
    case |= {key: row[key] for key in ("use", "batch", "ranks", "strategy")}
    case |= {"published": published_seconds(row), "authors": authors_seconds(row)}
    done = asked(options, folder, words(table, row, folder))
    if "refusal" in done:
        return case | {"refusal": done["refusal"]}
    answer = json.loads(done["answer"])
    error = answer["iteration_seconds"] / case["published"] - 1
    return case | {"predicted": answer["iteration_seconds"], "error": error, "digest": answer["digest"]}


def pairs(table, cases):
    """Cases that are ranked among each other, and more than 15 % apart: the faster one first."""
    key = table.get("ranked_by", "ranks")
    rate = lambda case: case["batch"] / case["published"]
    alike = lambda a, b: a[key] == b[key] and a["model"] == b["model"]
    return [(a, b) for a in cases for b in cases if alike(a, b) and rate(a) > APART * rate(b)]


def error_of(cases, key="predicted"):
    errors = [abs(case[key] / case["published"] - 1) for case in cases]
    return mean(errors) if errors else None


def table_of(options, folder, path):
    table = tomllib.loads(path.read_text())
    rows = [predicted(options, folder, table, row) for row in table["rows"]]
    cases = [row for row in rows if "refusal" not in row]
    modeled = [case for case in cases if case["authors"]]
    ranked = pairs(table, cases)
    right = [a["batch"] / a["predicted"] > b["batch"] / b["predicted"] for a, b in ranked]
    say(f"{table['name']}: done")
    return {
        "name": table["name"],
        "title": path.read_text().split("\n")[0].removeprefix("# "),
        "bound": table.get("mean_error_max"),
        "rows": rows,
        "predicted_rows": len(cases),
        "mean_error": error_of(cases),
        "bounded_error": error_of([case for case in cases if case["use"] == "predict"]),
        "shown_bound": table.get("shown_error_max"),
        "shown_error": error_of([case for case in cases if case["use"] == "show"]),
        "modeled_error": error_of(modeled),
        "authors_error": error_of(modeled, "authors"),
        "authors_error_all_points": table.get("authors_mean_error"),
        "pairs": len(ranked),
        "pairs_right": sum(right),
    }


def record(options, folder):
    head = contest.head(options, folder, "record_published.py", [])
    tables = [table_of(options, folder, path) for path in sorted(FOLDER.glob("*.toml"))]
    return head | {"finished": contest.now(), "tables": tables}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    contest.take(parser, "published", record, record_published_text.write)


if __name__ == "__main__":
    main()
