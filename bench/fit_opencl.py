"""Fits software/partita-opencl.toml to a record of steps on a GPU; --write puts the numbers into the file.

    cargo build --release -p partita-cli
    python3 bench/fit_opencl.py --binary target/release/partita

Read: steps of one rank in f32 of records/2026-11-26-gpu-h200.json. Each network fixes one number, in turns: CosmoFlow the
launch of a kernel, 3D U-Net the rate of 3D convolutions, ResNet-50 that of 2D convolutions. The steps in f16 are
printed beside what is predicted for them, and never fitted to.
"""

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
PROFILE = ROOT / "software/partita-opencl.toml"
RECORD = ROOT / "records/2026-11-26-gpu-h200.json"
MACHINE = "dgx-h200"
# Network -> key that it fixes.
FITTED = {"cosmoflow@32": "start", "unet3d@32": "conv3d", "resnet50@64": "conv2d"}


def written(text, numbers):
    """The text of the profile with other numbers."""
    for key, number in numbers.items():
        value = f'"{number:.2g} us"' if key == "start" else f"{number:.3g}"
        text = re.sub(rf'(?m)^({key} = \{{ value = )("[^"]*"|[^,]*)', rf"\g<1>{value}", text)
    return text


def measured():
    """Milliseconds of a step by network, batch and precision: medians of the turns."""
    steps = {}
    for network in json.loads(RECORD.read_text())["networks"]:
        for contender in network["contenders"]:
            facts = contender["facts"]
            if facts["device"] == "gpu" and facts["strategy"] == "data=1":
                seconds = median(turn["step_seconds"] for turn in contender["turns"])
                steps[network["model"], contender["batch"], facts["precision"]] = 1e3 * seconds
    return steps


class Predictor:
    def __init__(self, binary):
        self.binary, self.text = binary, PROFILE.read_text()

    def __call__(self, numbers, network, batch, precision):
        """Milliseconds of a step."""
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(written(self.text, numbers))
            file.flush()
            call = [self.binary, "predict", network, "--machine", MACHINE, "--software", file.name, "--ranks", "1"]
            call += ["--batch", str(batch), "--strategy", "data=1", "--precision", precision, "--no-io", "--json"]
            answer = json.loads(subprocess.run(call, check=True, capture_output=True).stdout)
        return 1e3 * answer["iteration_seconds"]


def solve(predict, target, number, rises):
    """The number for which `predict` gives the target; it `rises` or falls with the number."""
    low, high = number / 4, number * 4
    for _ in range(20):
        middle = (low * high) ** 0.5
        if (predict(middle) > target) == rises:
            high = middle
        else:
            low = middle
    return middle


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=ROOT / "target/release/partita")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    predict, steps = Predictor(asked.binary), measured()
    numbers = {"start": 20.0, "conv3d": 0.14, "conv2d": 0.06}
    for _ in range(3):
        for (network, batch, precision), target in steps.items():
            if precision == "f32":
                key = FITTED[network]
                of = lambda number: predict(numbers | {key: number}, network, batch, precision)
                numbers[key] = solve(of, target, numbers[key], key == "start")
    print({key: float(f"{number:.3g}") for key, number in numbers.items()})
    for (network, batch, precision), target in steps.items():
        use = "fitted" if precision == "f32" else "not fitted"
        reached = predict(numbers, network, batch, precision)
        print(f"{network}, {batch}, {precision}: {target:.2f} ms, predicted {reached:.2f}, {use}")
    if asked.write:
        PROFILE.write_text(written(predict.text, numbers))


if __name__ == "__main__":
    main()
