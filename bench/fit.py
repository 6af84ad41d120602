"""Fits numbers of machine files and software profiles to published rows, by the binary itself: what is fitted is what
is predicted with. A file fit_NAME.py says which numbers stand where, the rows, and the misfits of each stage.

    cargo build --release -p partita-cli
    python3 bench/fit_NAME.py --binary target/release/partita

Rows with use = "predict" are printed at the end and never fitted to. --write puts the numbers into the files.
"""

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Numbers = dict[str, float]


@dataclass(frozen=True)
class Place:
    """Where a number stands: a file, a table of it, and a key; with how many digits it is written."""

    file: str
    table: str
    key: str = "value"
    unit: str = ""
    digits: int = 3

    def rounded(self, number: float) -> float:
        return float(f"{number:.{self.digits}g}")

    def replaced(self, text: str, number: float) -> str:
        """The text of the file with this number."""
        written = f'"{number:.{self.digits}g} {self.unit}"' if self.unit else repr(self.rounded(number))
        start = text.index(f"\n[{self.table}]\n")
        pattern = r"(?m)^(value = )\S+" if self.key == "value" else rf'(?m)^({self.key} = \{{ value = )("[^"]*"|[^,]*)'
        return text[:start] + re.sub(pattern, lambda match: match[1] + written, text[start:], count=1)


def rows_of(*tables: str, keys: Sequence[str] = ("model", "machine", "software")) -> list[dict]:
    """The rows of published tables, with what these keys say of the whole table."""
    rows = []
    for name in tables:
        table = tomllib.loads((ROOT / "published" / f"{name}.toml").read_text())
        rows += [{"table": name} | {key: table[key] for key in keys if key in table} | row for row in table["rows"]]
    return rows


def milliseconds(row: dict, time: str = "milliseconds", rate: str = "samples_per_second") -> float:
    return row[time] if time in row else 1e3 * row["batch"] / row[rate]


class Fit:
    """Predictions with files of which numbers are replaced."""

    def __init__(self, binary: str, places: dict[str, list[Place]]) -> None:
        self.binary, self.places = binary, places
        files = {place.file for every in places.values() for place in every}
        self.texts = {name: (ROOT / name).read_text() for name in files}

    def files(self, numbers: Numbers) -> dict[str, str]:
        """The files with these numbers, by name."""
        texts = dict(self.texts)
        for place, number in ((place, number) for name, number in numbers.items() for place in self.places[name]):
            texts[place.file] = place.replaced(texts[place.file], number)
        return texts

    def predict(self, numbers: Numbers, rows: Sequence[dict]) -> list[tuple[float, dict]]:
        """Milliseconds of a step and of its parts, of each row."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in self.files(numbers).items():
                path = Path(folder) / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
            with ThreadPoolExecutor(2) as pool:
                return list(pool.map(lambda row: self.predict_row(Path(folder), row), rows))

    def predict_row(self, folder: Path, row: dict) -> tuple[float, dict]:
        call = [self.binary, "predict", str(ROOT / "published" / row["model"]) if "/" in row["model"] else row["model"]]
        for key in ("machine", "software"):
            changed = folder / f"{'machines' if key == 'machine' else key}/{row[key]}.toml"
            call += [f"--{key}", str(changed) if changed.exists() else row[key]]
        call += [word for key in ("precision", "optimizer") if key in row for word in (f"--{key}", row[key])]
        call += ["--ranks", str(row["ranks"]), "--batch", str(row["batch"]), "--strategy", row["strategy"]]
        done = subprocess.run([*call, "--no-io", "--json"], check=True, capture_output=True)
        answer = json.loads(done.stdout)
        return 1e3 * answer["iteration_seconds"], {name: 1e3 * part for name, part in answer["breakdown"].items()}

    def report(self, numbers: Numbers, rows: Sequence[dict]) -> None:
        print(f"\nms per step{'':41}published  predicted  error   authors")
        for row, (ours, parts) in zip(rows, self.predict(numbers, rows)):
            theirs = milliseconds(row)
            stated = "authors" in row or "authors_samples_per_second" in row
            authors = milliseconds(row, "authors", "authors_samples_per_second") if stated else theirs
            head = f"{row['use']:8}{row['model']:14}{row['batch']:6} on {row['ranks']:4} {row['strategy'][:20]:20}"
            print(f"{head}{theirs:9.1f} {ours:10.1f} {ours / theirs - 1:+8.1%} {authors / theirs - 1:+8.1%}")
            for name, published in row.get("parts", {}).items():
                if name in parts:
                    print(f"        {name:44}{published:9.1f} {parts[name]:10.1f}")


# A stage finds some numbers, given the others.
Stage = Callable[[Fit, Numbers], Numbers]


def fit(places: dict[str, list[Place]], rows: Sequence[dict], stages: list[tuple[str, Stage]]) -> None:
    """What a fit_NAME.py does, by its command line."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--binary", default=str(ROOT / "target/release/partita"))
    parser.add_argument("--report", action="store_true", help="only compare, with the files as they are")
    parser.add_argument("--stages", help="stages to fit, separated by commas (default: all)")
    parser.add_argument("--write", action="store_true", help="change the numbers in the files")
    options = parser.parse_args()
    own = Fit(options.binary, places)
    wanted = options.stages.split(",") if options.stages else [name for name, _ in stages]
    numbers: Numbers = {}
    for name, stage in () if options.report else stages:
        if name in wanted:
            found = stage(own, numbers)
            numbers |= {key: places[key][0].rounded(number) for key, number in found.items()}
            print(name, {key: numbers[key] for key in found}, flush=True)
    own.report(numbers, rows)
    if options.write:
        for name, text in own.files(numbers).items():
            (ROOT / name).write_text(text)


def least(function: Callable[[float], float], low: float, high: float, rounds: int = 14) -> float:
    """Where a function is least, by golden section search."""
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


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function, which rises, is 0, by bisection."""
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    # What is predicted with has few digits, so both ends may be predictions of their own.
    return min((low, high), key=lambda end: abs(function(end)))


def simplex(function: Callable[[Numbers], float], start: Numbers, step: float = 0.25, rounds: int = 60) -> Numbers:
    """Nelder and Mead's simplex in the logarithms, from one start: the same answer every time."""
    base, size = [math.log(number) for number in start.values()], len(start)

    def named(point: list[float]) -> Numbers:
        return {name: math.exp(x) for name, x in zip(start, point)}

    def valued(point: list[float]) -> tuple[float, list[float]]:
        return function(named(point)), point

    ranked = sorted(valued([x + step * (i == j) for j, x in enumerate(base)]) for i in range(-1, size))
    for _ in range(rounds):
        worst, others = ranked[-1], ranked[:-1]
        center = [sum(corner[i] for _, corner in others) / len(others) for i in range(size)]

        def along(t: float) -> tuple[float, list[float]]:
            return valued([c + t * (w - c) for c, w in zip(center, worst[1])])

        moved = along(-1.0)
        if moved[0] < ranked[0][0]:
            ranked = [*others, min(moved, along(-2.0))]
        elif moved[0] < others[-1][0]:
            ranked = [*others, moved]
        elif (inner := along(0.5))[0] < worst[0]:
            ranked = [*others, inner]
        else:
            best = ranked[0][1]
            near = [[(b + x) / 2 for b, x in zip(best, corner)] for _, corner in ranked[1:]]
            ranked = [ranked[0], *map(valued, near)]
        ranked.sort()
        if ranked[-1][0] - ranked[0][0] < 1e-5:
            break
    return named(ranked[0][1])
