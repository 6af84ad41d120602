"""Fits numbers of machines/lassen.toml and software/lbann.toml to published rows; --write puts them there.

    cargo build --release -p partita-cli
    python3 bench/fit_lassen.py --binary target/release/partita

Read: rows with use = "fit" of published/cosmoflow-512-strong.toml (4 samples on 32 to 512 devices) and,
for the rates of convolutions only, of published/unet3d-256-strong.toml (256 devices), and for batch norms of
published/cosmoflow-512-bn-weak.toml (32 devices). Each stage fits few numbers to few published parts of these
times, by the binary itself, so that what is fitted is what is predicted with:

    normalization   batch_norm: what a step with batch norms takes more than the same without
    compute         forward, backward, channels_forward, channels_backward, thickness
    exchange        latency, bandwidth
    redistribution  backward: what it takes in both passes, and what the wait for halos grows by from 256 to
                    512 devices, where the backward pass waits for it
    allreduce       growth: backward waits as a whole, since a wait that an exchange and a sum in
                    flight share may be booked under either

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
TABLES = ["cosmoflow-512-strong", "unet3d-256-strong", "cosmoflow-512-bn-weak"]
MACHINE, SOFTWARE = "machines/lassen.toml", "software/lbann.toml"
# Number of the fit -> where it stands: a table of one of the files, a key, and a unit.
PLACES = {
    "forward": [("device.efficiency.conv3d.forward", "value", "")],
    "backward": [
        ("device.efficiency.conv3d.backward_data", "value", ""),
        ("device.efficiency.conv3d.backward_weight", "value", ""),
    ],
    "channels_forward": [("device.efficiency.conv3d.saturation.channels_forward", "value", "")],
    "channels_backward": [("device.efficiency.conv3d.saturation.channels_backward", "value", "")],
    "thickness": [("device.efficiency.conv3d.saturation.thickness", "value", "")],
    "batch_norm": [("kernels", "batch_norm", "")],
    "latency": [("exchange.intra", "latency", "us"), ("exchange.inter", "latency", "us")],
    "bandwidth": [("exchange.intra", "bandwidth", "GB/s"), ("exchange.inter", "bandwidth", "GB/s")],
    "backward_redistribution": [("redistribution", "backward", "")],
    "growth": [("allreduce.fit", "growth", "")],
}
# What the files accept.
MOST = {"forward": 4, "backward": 4, "growth": 1}
STAGES = [
    ("normalization", ["batch_norm"]),
    ("compute", ["forward", "backward", "channels_forward", "channels_backward", "thickness"]),
    ("exchange", ["latency", "bandwidth"]),
    ("redistribution", ["backward_redistribution"]),
    ("allreduce", ["growth"]),
]


def text_of(number, unit):
    digits = f"{number:.3g}" if unit == "" else f'"{number:.3g} {unit}"'
    return digits if unit or "." in digits or "e" in digits else digits + ".0"


def replaced(text, place, number):
    """The text of a file with one number replaced, if the file has its table."""
    table, key, unit = place
    start = text.find(f"\n[{table}]\n")
    if start < 0:
        return text
    pattern = r"(?m)^(value = )\S+" if key == "value" else rf'(?m)^({key} = \{{ value = )("[^"]*"|[^,]*)'
    head, tail = text[:start], text[start:]
    return head + re.sub(pattern, lambda match: match[1] + text_of(number, unit), tail, count=1)


def with_numbers(text, numbers):
    for name, number in numbers.items():
        for place in PLACES[name]:
            text = replaced(text, place, number)
    return text


class Bench:
    def __init__(self, binary):
        self.binary = binary
        self.texts = {name: (ROOT / name).read_text() for name in (MACHINE, SOFTWARE)}
        self.rows = []
        for table in TABLES:
            content = tomllib.loads((ROOT / "published" / f"{table}.toml").read_text())
            self.rows += [dict(row, table=table, model=content["model"]) for row in content["rows"]]

    def files(self, numbers):
        """The files with these numbers, by name."""
        return {name: with_numbers(text, numbers) for name, text in self.texts.items()}

    def predict(self, paths, row):
        """Milliseconds of a step and of its parts."""
        machine, software = paths
        call = [self.binary, "predict", row["model"], "--machine", machine, "--software", software]
        call += ["--no-io", "--json"]
        call += ["--ranks", str(row["ranks"]), "--batch", str(row["batch"])]
        call += ["--strategy", row["strategy"]]
        answer = json.loads(subprocess.run(call, check=True, capture_output=True).stdout)
        parts = {part: 1e3 * seconds for part, seconds in answer["breakdown"].items()}
        return 1e3 * answer["iteration_seconds"], parts

    def all(self, numbers, rows):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, text in self.files(numbers).items():
                paths.append(str(Path(folder) / Path(name).name))
                Path(paths[-1]).write_text(text)
            with ThreadPoolExecutor(2) as pool:
                return list(pool.map(lambda row: self.predict(paths, row), rows))

    def fitting(self, stage):
        """Rows that a stage fits."""
        def fits(row):
            tables = {
                "normalization": ["cosmoflow-512-bn-weak"],
                "compute": ["cosmoflow-512-strong", "unet3d-256-strong"],
            }
            return row["use"] == "fit" and row["table"] in tables.get(stage, ["cosmoflow-512-strong"])
        return [row for row in self.rows if fits(row)]

    def misfit(self, stage, numbers):
        """Mean square of relative errors of the parts that the stage fits."""
        if any(numbers.get(name, 0) > most for name, most in MOST.items()):
            return math.inf
        fit = self.fitting(stage)
        if stage == "normalization":
            return self.misfit_of_normalization(fit, numbers)
        pairs = []
        for row, (_, ours) in zip(fit, self.all(numbers, fit)):
            theirs = row["parts"]
            if stage == "compute":
                names = ["forward_compute", "backward_compute"]
                pairs += [(ours[name], theirs[name]) for name in names]
            elif stage == "exchange":
                # In the row of 128 ways they include waits for the redistribution.
                pairs.append((ours["forward_exchange"], theirs["forward_exchange"]))
                if row["ranks"] < 512:
                    pairs.append((ours["backward_exchange"], theirs["backward_exchange"]))
            elif stage == "redistribution":
                if row["ranks"] == 512:
                    moved = theirs["forward_redistribution"] + theirs["backward_redistribution"]
                    before = next(row["parts"] for row in fit if row["ranks"] == 256)
                    moved += theirs["backward_exchange"] - before["backward_exchange"]
                    pairs.append((ours["redistribution"], moved))
            elif row["ranks"] < 512:
                names = ["backward_exchange", "gradient_allreduce_exposed"]
                pairs.append((sum(ours[n] for n in names), sum(theirs[n] for n in names)))
        return sum((a / b - 1) ** 2 for a, b in pairs) / len(pairs)

    def misfit_of_normalization(self, fit, numbers):
        """As `misfit`, of what steps take more than those of the same network without batch norms."""
        plain = {row["ranks"]: row for row in self.fitting("exchange")}
        with_norm = [step for step, _ in self.all(numbers, fit)]
        without = [step for step, _ in self.all(numbers, [plain[row["ranks"]] for row in fit])]
        total = 0.0
        for row, ours, ours_plain in zip(fit, with_norm, without):
            theirs = step_of(row) - step_of(plain[row["ranks"]])
            total += ((ours - ours_plain) / theirs - 1) ** 2
        return total / len(fit)


def step_of(row):
    """Published milliseconds of a step."""
    return row.get("milliseconds", 1e3 * row["batch"] / row["samples_per_second"])


def search(function, start, step=0.25, rounds=60):
    """Nelder and Mead's simplex in the logarithms, from one start: the same answer every time."""
    names = list(start)
    base = [math.log(start[name]) for name in names]
    value = lambda point: function({n: math.exp(x) for n, x in zip(names, point)})
    corners = [base] + [[x + step * (i == j) for j, x in enumerate(base)] for i in range(len(base))]
    ranked = sorted((value(corner), corner) for corner in corners)
    for _ in range(rounds):
        worst, others = ranked[-1], ranked[:-1]
        center = [sum(corner[i] for _, corner in others) / len(others) for i in range(len(base))]
        along = lambda t: [c + t * (w - c) for c, w in zip(center, worst[1])]
        moved = (value(along(-1.0)), along(-1.0))
        if moved[0] < ranked[0][0]:
            further = (value(along(-2.0)), along(-2.0))
            ranked = others + [min(moved, further)]
        elif moved[0] < others[-1][0]:
            ranked = others + [moved]
        else:
            inner = (value(along(0.5)), along(0.5))
            if inner[0] < worst[0]:
                ranked = others + [inner]
            else:
                best = ranked[0][1]
                near = [[(b + x) / 2 for b, x in zip(best, corner)] for _, corner in ranked[1:]]
                ranked = [ranked[0]] + [(value(corner), corner) for corner in near]
        ranked.sort()
        if ranked[-1][0] - ranked[0][0] < 1e-5:
            break
    return {name: math.exp(x) for name, x in zip(names, ranked[0][1])}


def report(bench, numbers):
    print("\nms per step                          published  predicted  error   authors")
    for row, (ours, parts) in zip(bench.rows, bench.all(numbers, bench.rows)):
        theirs = step_of(row)
        head = f"{row['use']:8}{row['model']:15}{row['batch']:4} on {row['ranks']:4}"
        print(f"{head}  {theirs:9.1f} {ours:10.1f} {ours / theirs - 1:+8.1%} {row.get('authors', theirs) / theirs - 1:+8.1%}")
        ours_of = dict(parts)
        if "parts" not in row:
            continue
        for name, published in row["parts"].items():
            if name.endswith("redistribution"):
                continue
            print(f"        {name:28} {published:9.1f} {ours_of[name]:10.1f}")
        both = sum(v for k, v in row["parts"].items() if k.endswith("redistribution"))
        print(f"        {'redistribution':28} {both:9.1f} {ours_of['redistribution']:10.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/partita"))
    parser.add_argument("--report", action="store_true", help="only compare, with the file as it is")
    parser.add_argument("--stages", help="stages to fit, separated by commas (default: all)")
    parser.add_argument("--write", action="store_true", help="change the numbers in both files")
    arguments = parser.parse_args()
    bench = Bench(arguments.binary)
    numbers = {}
    if not arguments.report:
        starts = {
            "forward": 0.8, "backward": 1.2, "channels_forward": 17, "channels_backward": 100,
            "thickness": 1, "latency": 300, "bandwidth": 2.5, "growth": 0.4,
            "batch_norm": 4, "backward_redistribution": 0.9,
        }
        wanted = arguments.stages.split(",") if arguments.stages else [stage for stage, _ in STAGES]
        for stage, names in (one for one in STAGES if one[0] in wanted):
            start = {name: starts[name] for name in names}
            found = search(lambda point: bench.misfit(stage, numbers | point), start)
            numbers |= found
            error = math.sqrt(bench.misfit(stage, numbers))
            print(stage, {n: float(f"{v:.3g}") for n, v in found.items()}, f"rms {error:.1%}", flush=True)
        # What is written has three digits; the rest of this report is of that.
        numbers = {name: float(f"{number:.3g}") for name, number in numbers.items()}
    report(bench, numbers)
    if arguments.write:
        for name, text in bench.files(numbers).items():
            (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
