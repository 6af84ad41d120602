"""Records what is predicted for the rows of all tables in published/, beside what was measured there.

Every row is one `partita predict` with the machine, software, precision and optimizer that its table or the row itself
names, without reading unless the table names its `io`. A row that the binary refuses, since it lacks the machine or the
option, counts as not predicted.
"""

import json
import tomllib
from pathlib import Path
from statistics import mean

from page import head, percent, table
from runner import ROOT, Bench, Record, say

FOLDER = ROOT / "published"
# Published rates closer than this are not ranked.
APART = 1.15
KEPT = ("model", "machine", "software", "precision", "use", "batch", "ranks", "strategy")


def own(name: str) -> str:
    """A file that lies beside the tables, or a name that the binary knows."""
    return str(FOLDER / name) if "/" in name else name


def profile(bench: Bench, row: dict) -> str:
    """The software of a row; with the table's `spatial_io`, if it has one, as a file in the folder."""
    name = row["software"]
    if "spatial_io" not in row:
        return name
    source = f'spatial_io = {{ value = {str(row["spatial_io"]).lower()}, source = "the table" }}'
    text = (ROOT / "software" / f"{name}.toml").read_text()
    path = bench.folder / f"{name}.toml"
    path.write_text(text.replace("data_store", f"{source}\ndata_store", 1))
    return str(path)


def words(bench: Bench, row: dict) -> list:
    strategy, software, options = row["strategy"], row.get("software"), list(row.get("more", []))
    if software and "=" in software:
        # Settings of all layers, before those of some.
        every, mark, some = strategy.partition(";")
        strategy = f"{every},{software}{mark}{some}"
    elif software:
        options += ["--software", profile(bench, row)]
    for key in ("precision", "optimizer"):
        options += [f"--{key}", row[key]] if row.get(key) else []
    named = ["predict", own(row["model"]), "--machine", own(row["machine"]), "--io", row.get("io", "none")]
    return [*named, "--ranks", row["ranks"], "--batch", row["batch"], "--strategy", strategy, "--json", *options]


def seconds_of(row: dict, rate: str, milliseconds: str) -> float | None:
    if milliseconds in row:
        return row[milliseconds] / 1e3
    return row[rate] and row["batch"] / row[rate] if rate in row else None


def predicted(bench: Bench, row: dict) -> dict:
    case = {key: row.get(key) for key in KEPT}
    case["published"] = seconds_of(row, "samples_per_second", "milliseconds")
    case["authors"] = seconds_of(row, "authors_samples_per_second", "authors")
    done = bench.asked(*words(bench, row))
    if "refusal" in done:
        return case | {"refusal": done["refusal"]}
    answer = json.loads(done["answer"])
    seconds = answer["iteration_seconds"]
    return case | {"predicted": seconds, "error": seconds / case["published"] - 1, "digest": answer["digest"]}


def rate(case: dict, key: str = "published") -> float:
    return case["batch"] / case[key]


def pairs(key: str, cases: list[dict]) -> list[tuple[dict, dict]]:
    """Cases that are ranked among each other, and more than 15 % apart: the faster one first."""
    alike = [(a, b) for a in cases for b in cases if a[key] == b[key] and a["model"] == b["model"]]
    return [(a, b) for a, b in alike if rate(a) > APART * rate(b)]


def error_of(cases: list[dict], key: str = "predicted") -> float | None:
    errors = [abs(case[key] / case["published"] - 1) for case in cases]
    return mean(errors) if errors else None


def table_of(bench: Bench, path: Path) -> dict:
    text = path.read_text()
    facts = tomllib.loads(text)
    defaults = {key: value for key, value in facts.items() if key != "rows"}
    rows = [predicted(bench, defaults | row) for row in facts["rows"]]
    cases = [row for row in rows if "refusal" not in row]
    modeled = [case for case in cases if case["authors"]]
    ranked = pairs(facts.get("ranked_by", "ranks"), cases)
    say(f"{facts['name']}: done")
    return {
        "name": facts["name"],
        "title": text.split("\n")[0].removeprefix("# "),
        "bound": facts.get("mean_error_max"),
        "rows": rows,
        "predicted_rows": len(cases),
        "mean_error": error_of(cases),
        "bounded_error": error_of([case for case in cases if case["use"] == "predict"]),
        "shown_bound": facts.get("shown_error_max"),
        "shown_error": error_of([case for case in cases if case["use"] == "show"]),
        "modeled_error": error_of(modeled),
        "authors_error": error_of(modeled, "authors"),
        "authors_error_all_points": facts.get("authors_mean_error"),
        "pairs": len(ranked),
        "pairs_right": sum(rate(a, "predicted") > rate(b, "predicted") for a, b in ranked),
    }


def measure(bench: Bench) -> dict:
    return {"tables": [table_of(bench, path) for path in sorted(FOLDER.glob("*.toml"))]}


def page(record: dict, raw: str):
    yield head(record, "Predictions of published runs", f"""\
Error is `predicted / published - 1` of the time of a step; means are of its size. Bounded are the rows to
which no number of a machine or a software was fitted; a test holds their mean to the bound. Shown are rows that
the software or the machine is not described for, as the head of their table says. The authors'
error is that of the model that is published with the same rows. A pair are two rows with as many devices (or
samples) whose published rates are more than 15 % apart; it is right if the same one is predicted to be the
faster. Where the rows come from stands in the head of `published/TABLE.toml`. Raw data: `{raw}`.""")
    columns = "table | rows predicted> | mean error> | bounded rows> | bound> | shown rows> | bound>"
    columns += " | rows of the authors' model> | theirs> | pairs right>"
    yield "## Tables\n\n" + table(columns, map(summary, record["tables"]))
    columns = "use | network | machine | software | devices> | samples> | strategy | published ms> | predicted ms>"
    for one in record["tables"]:
        rows = table(columns + " | error> | authors' error>", map(cells, one["rows"]))
        yield f"## {one['name']}\n\n{one['title']}\n\n{rows}"


def known(value: float | None) -> str:
    return "" if value is None else percent(value)


def summary(one: dict) -> list:
    every = one["authors_error_all_points"]
    theirs = known(one["authors_error"]) + (f" (all their points {percent(every)})" if every is not None else "")
    errors = ("mean_error", "bounded_error", "bound", "shown_error", "shown_bound", "modeled_error")
    predicted_rows, right = f"{one['predicted_rows']} of {len(one['rows'])}", f"{one['pairs_right']} of {one['pairs']}"
    return [one["name"], predicted_rows, *(known(one[key]) for key in errors), theirs, right]


def cells(row: dict) -> list:
    theirs = row["authors"] and row["authors"] / row["published"] - 1
    model, machine = (row[key].split("/")[-1].split(".")[0] for key in ("model", "machine"))
    software = ", ".join(filter(None, (row["software"], row["precision"])))
    seconds = (row.get(key) for key in ("published", "predicted"))
    milliseconds = ("" if one is None else f"{1e3 * one:.4g}" for one in seconds)
    error = signed(row["error"]) if "error" in row else "refused"
    run = (row["use"], model, machine, software, row["ranks"], row["batch"], row["strategy"])
    return [*run, *milliseconds, error, signed(theirs)]


def signed(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


if __name__ == "__main__":
    Record("published", measure, page, {}).take()
