"""Judges the networks of torchvision, MONAI and timm: exports each, imports it, and compares its loss and all gradients with PyTorch's.

Run: cargo test --profile suite -p partita-testkit --test it --no-run, then
python3 record_imported.py TEST [torchvision|monai|timm|FAMILY-NAME ...]; TEST is the test's executable, as cargo names it. A row
per network is printed: imported, refused by name, wrong, or not judged, and what it took. Each export is deleted once it is judged.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "fixtures/imported"))
import make  # noqa: E402

# Seconds of one network.
LIMIT = int(os.environ.get("LIMIT", "900"))


def judge(test, folder, name):
    environment = os.environ | {"PARTITA_IMPORTED": str(folder)}
    command = [test, "networks_of_a_folder", "--nocapture"]
    work = ROOT / "crates/testkit"
    try:
        ended = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"not judged: more than {LIMIT} s"
    lines = (ended.stdout + ended.stderr).splitlines()
    start = f"{name}: "
    found = [index for index, line in enumerate(lines) if line.startswith(start)]
    if not found:
        return f"not judged: the test ended with {ended.returncode}"
    first = lines[found[0]].removeprefix(start)
    # Refusals list their operators.
    more = [line.strip() for line in lines[found[0] + 1 :] if line.startswith("  aten")]
    return " / ".join([first, *more[:3]])


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    test, *asked = sys.argv[1:]
    for family, cases in make.FAMILIES.items():
        for name, module, shape in cases():
            if asked and family not in asked and f"{family}-{name}" not in asked:
                continue
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    make.write(Path(folder), f"{family}-{name}", module(), shape, True, rounding=True)
                    row = judge(test, Path(folder), f"{family}-{name}")
                except Exception as error:
                    row = f"not exported: {str(error).splitlines()[0]}"
            print(f"{family}-{name}: {row} ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
