"""Records training steps of CosmoFlow, Partita and PyTorch side by side on this machine's cores.

For each size the contenders take turns: all of them once is a round, and there are several rounds,
so that what disturbs the machine disturbs all. A turn of Partita is a `partita train`, whose first
two steps it leaves out itself; a turn of PyTorch is two steps that do not count, then `--steps`.
The figure of a turn is the median of its steps, that of a contender the median of its turns. A step
of Partita begins with reading the sample from its file; PyTorch's batch is in memory already.

Partita predicts before it trains, from kernels measured here: `prediction.json` must be older than
the run's first step and hold what the run is compared with, or there is no record.

PyTorch also runs with two samples a step: its choice of convolution kernels depends on the batch,
and with one small sample it takes slow ones. So no ratio needs to rest on that choice.

Writes records/<date>-cosmoflow-step.md and, with all raw figures, the same name with .json.
Without PyTorch it says so and records Partita alone.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import math
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

import record_text

ROOT = Path(__file__).resolve().parent.parent
PEER = ROOT / "bench" / "peer_cosmoflow.py"
DEFAULT_PARTITA = ROOT / "target" / "release" / "partita"
TRAINING_SAMPLES = 5
WARMUP = 2

RUN_FILE = """model = "cosmoflow@{size}"
data = "universes{size}"
output = "out"
ranks = {ranks}
strategy = "{strategy}"
threads = {threads}
batch = {batch}
epochs = {epochs}
seed = 1
kernels = "cpu"
transform = "log1p"

[optimizer]
kind = "adam"

[schedule]
kind = "constant"
learning_rate = 1e-4
"""


class Failure(Exception):
    """The machine or a program did not do what the record needs."""


class Partita:
    """A way to run `partita train`; it starts anew at each turn."""

    def __init__(self, options, folder, size, ranks, threads, strategy, batch):
        self.options, self.folder, self.size = options, folder, size
        self.ranks, self.threads, self.strategy, self.batch = ranks, threads, strategy, batch
        self.name = f"Partita, {counted(ranks, 'rank')} x {counted(threads, 'thread')}, {strategy}"
        self.cores = ranks * threads
        self.facts = {"ranks": ranks, "threads": threads, "strategy": strategy}

    def turn(self):
        full_steps = TRAINING_SAMPLES // self.batch
        epochs = math.ceil((self.options.steps + WARMUP) / full_steps)
        (self.folder / "run.toml").write_text(RUN_FILE.format(epochs=epochs, **vars(self)))
        output = self.folder / "out"
        shutil.rmtree(output, ignore_errors=True)
        run_partita(self.options, self.folder, ["train", "run.toml"])
        prediction = json.loads((output / "prediction.json").read_text())
        result = json.loads((output / "result.json").read_text())
        comparison = result["comparison"]
        ahead = modified(output / "result.json") - modified(output / "prediction.json")
        self.check(prediction, result, ahead)
        return {
            "step_seconds": result["step_seconds_median"],
            "steps": result["steps_measured"],
            "digest": result["digest"],
            "predicted_seconds": prediction["iteration_seconds"],
            "prediction_basis": prediction["basis"],
            "prediction_breakdown": prediction["breakdown"],
            "prediction_stored_before_result_seconds": ahead,
            "training_seconds": result["seconds"],
            "comparison": comparison,
            "memory": result["memory"],
        }

    def check(self, prediction, result, ahead):
        """That the prediction is of this program, was compared, and is older than any step."""
        compared = result["comparison"]["iteration"]["predicted"]
        if prediction["digest"] != result["digest"] or prediction["iteration_seconds"] != compared:
            raise Failure(f"{self.name}: prediction.json is not what the run was compared with")
        if ahead < result["seconds"]:
            raise Failure(
                f"{self.name}: prediction.json was stored {ahead:.2f} s before the result, but the"
                f" training took {result['seconds']:.2f} s"
            )

    def processor_seconds(self):
        return 0.0

    def close(self):
        pass


class Torch:
    """A PyTorch process that waits between its turns."""

    def __init__(self, options, size, threads, layout, batch):
        self.options, self.batch, self.cores, self.layout = options, batch, threads, layout
        self.name = f"PyTorch, {counted(threads, 'thread')}, {layout}"
        command = [sys.executable, str(PEER), "--serve", "--size", str(size), "--batch", str(batch)]
        command += ["--threads", str(threads), "--layout", layout]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts = self.read()["ready"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failure(f"{self.name}: the process ended with code {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise Failure(f"{self.name}: {answer['error']}")
        return answer

    def steps(self, count):
        self.process.stdin.write(f"step {count}\n")
        self.process.stdin.flush()
        return self.read()["seconds"]

    def turn(self):
        self.steps(WARMUP)
        seconds = self.steps(self.options.steps)
        return {"step_seconds": median(seconds), "steps": len(seconds), "seconds": seconds}

    def processor_seconds(self):
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def modified(path):
    return path.stat().st_mtime


def counted(count, noun):
    return f"{count} {noun}" + ("" if count == 1 else "s")


def run_partita(options, folder, arguments):
    # The cache starts empty: a prediction rests on what was measured for this record.
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    command = [str(options.partita), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"partita {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def machine_processor_seconds():
    """Busy and stolen seconds of all cores since the start of the machine, or None."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, steal / tick


def own_processor_seconds(contender):
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in usages) + contender.processor_seconds()


def take_turn(contender):
    """A turn, with the cores that other processes and other virtual machines took meanwhile."""
    start, machine = time.monotonic(), machine_processor_seconds()
    own = own_processor_seconds(contender)
    record = contender.turn()
    wall = time.monotonic() - start
    record["turn_seconds"] = wall
    if machine is not None:
        busy, steal = (after - b for after, b in zip(machine_processor_seconds(), machine))
        others = busy - (own_processor_seconds(contender) - own)
        record["other_cores"], record["stolen_cores"] = max(0.0, others / wall), steal / wall
    return record


def contenders(options, folder, size, with_torch):
    """All that take turns at a size, started; neighbors in a round compete for the same figure."""
    yield Partita(options, folder, size, 1, 1, "data=1", 1)
    yield from torches(options, size, 1, 1, with_torch)
    yield from torches(options, size, 1, 2, with_torch)
    yield Partita(options, folder, size, 1, 2, "data=1", 1)
    yield Partita(options, folder, size, 2, 1, "depth=2", 1)
    yield from torches(options, size, 2, 1, with_torch)
    yield Partita(options, folder, size, 2, 1, "data=2", 2)
    yield from torches(options, size, 2, 2, with_torch)


def torches(options, size, threads, batch, with_torch):
    if with_torch:
        for layout in ("default", "channels_last"):
            yield Torch(options, size, threads, layout, batch)


def measure_size(options, folder, size, with_torch):
    with contextlib.ExitStack() as stack:
        racers = []
        for racer in contenders(options, folder, size, with_torch):
            stack.callback(racer.close)
            racers.append(racer)
        turns = [[] for _ in racers]
        for number in range(1, options.rounds + 1):
            for racer, taken in zip(racers, turns):
                taken.append(take_turn(racer))
                step = taken[-1]["step_seconds"]
                who = f"{racer.name}, batch {racer.batch}"
                say(f"{size}, round {number}: {who}: {step:.4f} s a step")
        return [
            {
                "program": "PyTorch" if isinstance(r, Torch) else "Partita",
                "name": r.name,
                "batch": r.batch,
                "cores": r.cores,
                "facts": r.facts,
                "turns": t,
            }
            for r, t in zip(racers, turns)
        ]


def make_dataset(options, folder, size):
    start = time.monotonic()
    arguments = ["data", "cosmology", "--grid", str(size), "--universes", "6"]
    arguments += ["--validation", "0.17", "--test", "0", "--out", f"universes{size}"]
    run_partita(options, folder, arguments)
    seconds = time.monotonic() - start
    say(f"made 6 universes of {size}^3 in {seconds:.1f} s")
    return seconds


def output_of(*command):
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def describe_machine(options, folder):
    doctor = json.loads(run_partita(options, folder, ["doctor", "--json"]))
    kept = ("processor", "cores_usable", "cores_physical", "simd", "memory_bytes")
    return {key: doctor[key] for key in kept} | {
        "kernel": f"{platform.system()} {platform.release()}",
        "load_at_start": os.getloadavg()[0],
    }


def describe_versions(options, folder):
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    return {
        "partita": run_partita(options, folder, ["--version"]).strip(),
        "partita_sha256": hashlib.sha256(options.partita.read_bytes()).hexdigest(),
        "commit": output_of("git", "rev-parse", "HEAD"),
        "own_binary": options.partita == DEFAULT_PARTITA,
        "commit_changed": None if changed is None else changed != "",
        "rustc": output_of("rustc", "--version"),
        "python": platform.python_version(),
    }


def command_line(options):
    """What was typed, without folders of this machine."""
    words = ["python3", "bench/record.py", "--rounds", str(options.rounds)]
    words += ["--steps", str(options.steps), "--sizes", *map(str, options.sizes)]
    if options.partita != DEFAULT_PARTITA:
        words += ["--partita", "PATH"]
    return " ".join(words)


def say(line):
    print(line, flush=True)


def record(options, folder):
    with_torch = importlib.util.find_spec("torch") is not None
    if not with_torch:
        say(f"This Python ({platform.python_version()}) lacks PyTorch: recording Partita alone.")
        say("For the comparison: pip install torch, then run this again.")
    started = datetime.now(timezone.utc)
    head = {
        "started": started.isoformat(timespec="seconds"),
        "command": command_line(options),
        "machine": describe_machine(options, folder),
        "versions": describe_versions(options, folder),
        "with_torch": with_torch,
        "rounds": options.rounds,
        "steps": options.steps,
    }
    sizes = []
    for size in options.sizes:
        seconds = make_dataset(options, folder, size)
        racers = measure_size(options, folder, size, with_torch)
        sizes.append({"size": size, "dataset_seconds": seconds, "contenders": racers})
        shutil.rmtree(folder / f"universes{size}")
    finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return head | {"finished": finished, "sizes": sizes}


def whole(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not possible; the least is 1")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--partita", type=Path, default=DEFAULT_PARTITA)
    parser.add_argument("--sizes", type=int, nargs="+", choices=(64, 128), default=[64, 128])
    parser.add_argument("--rounds", type=whole, default=3)
    parser.add_argument("--steps", type=whole, default=8, help="timed steps of a turn")
    parser.add_argument("--out", type=Path, default=ROOT / "records", help="folder of the record")
    options = parser.parse_args()
    options.partita = options.partita.absolute()
    if not options.partita.is_file():
        raise Failure("there is no partita binary: `make bench` builds it; --partita names another")
    with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
        taken = record(options, Path(folder))
    name = f"{taken['started'][:10]}-cosmoflow-step"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.json").write_text(json.dumps(taken, indent=1) + "\n")
    text = record_text.write(taken, f"{name}.json")
    (options.out / f"{name}.md").write_text(text)
    say(text)


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"no record: {failure}")
    except KeyboardInterrupt:
        sys.exit("no record: interrupted")
