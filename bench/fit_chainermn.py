"""Fits numbers of software/chainermn.toml to published rows; --write puts them into the file.

    cargo build --release -p partita-cli
    python3 bench/fit_chainermn.py --binary target/release/partita

Read: rows with use = "fit" of published/resnet50-abci.toml, and the computation of such rows of
published/resnet50-abci-epochs.toml. Each stage fits one number or two to few published times, by the binary
itself, so that what is fitted is what is predicted with:

    kernels         channel, space: computation of rows that say it
    sums            growth: steps under `data` alone
    exchange        latency: steps under `data` and `height`
    redistribution  filter and backward in turns: steps under `filter`, `channel`, `data` and `filter`

Rows with use = "predict" are printed at the end and never fitted to.
"""

import argparse
import json
import math
import re
import subprocess
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "software/chainermn.toml"
TABLES = ["resnet50-abci", "resnet50-abci-epochs", "resnet50-abci-logs", "vgg16-abci", "cosmoflow-abci"]
# Number of the fit -> table of the profile, key, unit, range.
PLACES = {
    "channel": ("kernels.split", "channel", "", (0.3, 1.3)),
    "space": ("kernels.split", "space", "", (0.0, 1.0)),
    "growth": ("allreduce.fit", "growth", "", (0.05, 0.9)),
    "latency": ("exchange.intra", "latency", "ms", (0.5, 8.0)),
    "filter": ("kernels.split", "filter", "", (0.3, 1.3)),
    "backward": ("redistribution", "backward", "", (0.0, 4.0)),
}


def replaced(text, name, number):
    """The text of the profile with one number replaced."""
    table, key, unit, _ = PLACES[name]
    digits = f'"{number:.3g} {unit}"' if unit else f"{float(f'{number:.3g}')!r}"
    start = text.index(f"\n[{table}]\n")
    pattern = rf'(?m)^({key} = \{{ value = )("[^"]*"|[^,]*)'
    return text[:start] + re.sub(pattern, lambda match: match[1] + digits, text[start:], count=1)


def profile(text, numbers):
    for name, number in numbers.items():
        text = replaced(text, name, number)
    return text


def axes(strategy):
    return {word.split("=")[0] for word in strategy.split(";")[0].split(",")}


def milliseconds(row, rate="samples_per_second", time="milliseconds"):
    return row[time] if time in row else 1e3 * row["batch"] / row[rate]


class Bench:
    def __init__(self, binary, text):
        self.binary, self.text, self.rows = binary, text, []
        for table in TABLES:
            content = tomllib.loads((ROOT / "published" / f"{table}.toml").read_text())
            head = {"table": table, "model": content["model"], "machine": content["machine"]}
            self.rows += [head | row for row in content["rows"]]

    def predict(self, path, row):
        """Milliseconds of a step and of its computation."""
        model = row["model"]
        model = str(ROOT / "published" / model) if "/" in model else model
        call = [self.binary, "predict", model, "--machine", row["machine"], "--software", path]
        call += ["--ranks", str(row["ranks"]), "--batch", str(row["batch"])]
        call += ["--strategy", row["strategy"], "--no-io", "--json"]
        answer = json.loads(subprocess.run(call, check=True, capture_output=True).stdout)
        parts = answer["breakdown"]
        computation = parts["forward_compute"] + parts["backward_compute"] + parts["update"]
        return 1e3 * answer["iteration_seconds"], 1e3 * computation

    def all(self, numbers, rows):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "fitted.toml"
            path.write_text(profile(self.text, numbers))
            with ThreadPoolExecutor(2) as pool:
                return list(pool.map(lambda row: self.predict(str(path), row), rows))

    def fitting(self, name):
        """Rows that a number is fitted to, and whether to their computation alone."""
        fit = [row for row in self.rows if row["use"] == "fit"]
        if name in ("channel", "space"):
            axis = "height" if name == "space" else name
            said = [row for row in fit if "computation" in row.get("parts", {})]
            return [row for row in said if axis in axes(row["strategy"])], True
        fit = [row for row in fit if row["table"] == "resnet50-abci"]
        wanted = {
            "growth": lambda split: split == {"data"},
            "latency": lambda split: "height" in split,
            "filter": lambda split: "filter" in split,
            "backward": lambda split: bool(split & {"filter", "channel"}),
        }[name]
        return [row for row in fit if wanted(axes(row["strategy"]))], False

    def misfit(self, name, numbers):
        """Mean square of the logarithms of predicted by published times."""
        rows, is_computation = self.fitting(name)
        total = 0.0
        for row, (step, computation) in zip(rows, self.all(numbers, rows)):
            if is_computation:
                total += math.log(computation / row["parts"]["computation"]) ** 2
            else:
                total += math.log(step / milliseconds(row)) ** 2
        return total / len(rows)


def least(function, low, high, rounds=14):
    """Golden section search."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    of_a, of_b = function(a), function(b)
    for _ in range(rounds):
        if of_a < of_b:
            high, b, of_b = b, a, of_a
            a = high - ratio * (high - low)
            of_a = function(a)
        else:
            low, a, of_a = a, b, of_b
            b = low + ratio * (high - low)
            of_b = function(b)
    return (low + high) / 2


def report(bench, numbers):
    print("\nms per step                                         published  predicted  error   authors")
    for row, (ours, _) in zip(bench.rows, bench.all(numbers, bench.rows)):
        theirs = milliseconds(row)
        stated = "authors" in row or "authors_samples_per_second" in row
        authors = milliseconds(row, "authors_samples_per_second", "authors") if stated else theirs
        head = f"{row['use']:8}{row['model']:14}{row['batch']:6} on {row['ranks']:4} {row['strategy'][:20]:20}"
        print(f"{head}{theirs:9.1f} {ours:10.1f} {ours / theirs - 1:+8.1%} {authors / theirs - 1:+8.1%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/partita"))
    parser.add_argument("--report", action="store_true", help="only compare, with the file as it is")
    parser.add_argument("--write", action="store_true", help="change the numbers in the profile")
    arguments = parser.parse_args()
    bench = Bench(arguments.binary, PROFILE.read_text())
    numbers = {}
    # The last two depend on each other.
    turns = [*PLACES, *list(PLACES)[-2:]]
    for name in [] if arguments.report else turns:
        low, high = PLACES[name][3]
        found = least(lambda number: bench.misfit(name, numbers | {name: number}), low, high)
        numbers[name] = float(f"{found:.3g}")
        rms = math.sqrt(bench.misfit(name, numbers))
        print(name, numbers[name], f"rms {rms:.1%} of {len(bench.fitting(name)[0])} rows", flush=True)
    report(bench, numbers)
    if arguments.write:
        PROFILE.write_text(profile(bench.text, numbers))


if __name__ == "__main__":
    main()
