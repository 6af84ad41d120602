#!/usr/bin/env python3
"""Fits two numbers to rows with use = "fit" of the tables of MLPerf; --write puts them into their files.

- kernels.batch_norm of software/mxnet.toml, to published/mlperf-training-resnet50.toml;
- the f16 shares of 3D convolutions of machines/dgx-a100.toml, one for all passes, to the rows of
  published/mlperf-hpc-cosmoflow.toml on dgx-a100 with pytorch-ddp.

Each is the number at which the mean of ln(predicted / published) over the rows is 0, by bisection.
"""

import argparse
import json
import math
import re
import subprocess
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARE = re.compile(r"(\[device\.efficiency\.f16\.conv3d\]\n)((?:\w+ = \{.*\}\n){3})")


def rows(name, keep):
    table = tomllib.loads((ROOT / f"published/{name}.toml").read_text())
    defaults = {key: table[key] for key in ("model", "machine", "software", "precision") if key in table}
    every = [defaults | row for row in table["rows"]]
    return [row | {"optimizer": table["optimizer"]} for row in every if row["use"] == "fit" and keep(row)]


def error(binary, row, machine, software):
    """ln(predicted / published) of a row, with files for machine and software where they are changed."""
    model = row["model"]
    model = str(ROOT / "published" / model) if "/" in model else model
    command = [
        binary, "predict", model, "--machine", machine or row["machine"], "--software", software or row["software"],
        "--precision", row["precision"], "--optimizer", row["optimizer"], "--ranks", str(row["ranks"]),
        "--batch", str(row["batch"]), "--strategy", row["strategy"], "--no-io", "--json",
    ]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    published = row["batch"] / row["samples_per_second"] if "samples_per_second" in row else row["milliseconds"] / 1e3
    return math.log(answer["iteration_seconds"] / published)


def bisect(mean, low, high):
    """The argument at which `mean`, which rises, is 0."""
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if mean(middle) > 0 else (middle, high)
    return round((low + high) / 2, 3)


def fitted(binary, chosen, text, changed, kind):
    def mean(value):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(changed(text, value))
            file.flush()
            given = {"machine": None, "software": None} | {kind: file.name}
            errors = [error(binary, row, **given) for row in chosen]
            return sum(errors) / len(errors)

    return mean


def with_batch_norm(text, value):
    return re.sub(r"batch_norm = \{ value = [0-9.]+", f"batch_norm = {{ value = {value:.4f}", text)


def with_share(text, value):
    source = 'basis = "fitted", source = "bench/fit_mlperf.py, rows with use = \\"fit\\" on this machine in published/mlperf-hpc-cosmoflow.toml; one share for all passes"'
    passes = "".join(f"{name} = {{ value = {value:.4f}, {source} }}\n" for name in ("forward", "backward_data", "backward_weight"))
    return SHARE.sub(lambda found: found.group(1) + passes, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "target/release/partita"))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()

    profile = ROOT / "software/mxnet.toml"
    machine = ROOT / "machines/dgx-a100.toml"
    resnet = rows("mlperf-training-resnet50", lambda row: row["software"] == "mxnet")
    cosmoflow = rows("mlperf-hpc-cosmoflow", lambda row: (row["machine"], row["software"]) == ("dgx-a100", "pytorch-ddp"))

    factor = bisect(fitted(arguments.binary, resnet, profile.read_text(), with_batch_norm, "software"), 0.0, 2.0)
    falling = fitted(arguments.binary, cosmoflow, machine.read_text(), with_share, "machine")
    share = bisect(lambda value: -falling(value), 0.02, 1.0)
    print(f"kernels.batch_norm = {factor} on {len(resnet)} rows, f16 share of 3D convolutions = {share} on {len(cosmoflow)} rows")
    if arguments.write:
        profile.write_text(with_batch_norm(profile.read_text(), factor))
        machine.write_text(with_share(machine.read_text(), share))


if __name__ == "__main__":
    main()
