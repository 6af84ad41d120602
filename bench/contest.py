"""What the records have in common: programs that take turns, and the machine they take them on."""

import argparse
import hashlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_PARTITA = ROOT / "target" / "release" / "partita"
DEFAULT_KERNELS = ROOT / "target" / "release" / "examples" / "convolution"


# What `partita doctor` says of the processor, and the instruction levels that take turns there.
LEVELS = {"AVX2": ("avx2",)} | dict.fromkeys(("AVX-512", "AVX-512 with BF16"), ("avx512", "avx2"))
# What keeps oneDNN, and all that PyTorch computes with, to a level below that of the processor.
LIMITS = {
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    }
}


class Failure(Exception):
    """The machine or a program did not do what the record needs."""


class TooLong(Failure):
    """A command was ended because it took longer than it may."""


class Served:
    """A process that answers lines with lines of JSON and waits in between.

    It keeps to the first `threads` cores that this process may use; where its threads lie among them
    is left to the system. `variables` are those of its environment besides.
    """

    def __init__(self, name, command, threads, variables=()):
        self.name, self.cores = name, threads
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | dict(variables)
        self.process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=on_cores(own_cores()[:threads]),
        )
        self.facts = self.read()["ready"]

    def read(self):
        line = self.process.stdout.readline()
        if not line:
            raise Failure(f"{self.name}: the process ended with code {self.process.wait()}")
        return json.loads(line)

    def ask(self, line):
        """The answer, which may be {"error": ...}."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.read()

    def demand(self, line):
        answer = self.ask(line)
        if "error" in answer:
            raise Failure(f"{self.name}: {answer['error']}")
        return answer

    def timed(self, warmup, count):
        """A turn of a peer: so many steps that do not count, then those that do."""
        self.demand(f"step {warmup}")
        seconds = self.demand(f"step {count}")["seconds"]
        return {"step_seconds": median(seconds), "steps": len(seconds), "seconds": seconds}

    def processor_seconds(self):
        return processor_seconds_of(self.process.pid)

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def own_cores():
    return sorted(os.sched_getaffinity(0))


def on_cores(cores):
    """What a child does first to keep to some cores."""
    return lambda: os.sched_setaffinity(0, cores)


def gauge(kernels, threads):
    """A process that measures what so many cores can do, where the example of kernels is built."""
    return Served(f"gauge of {counted(threads, 'core')}", [kernels, threads], threads)


def levels(machine):
    """The instruction levels of a machine that `head` describes, the highest first."""
    return LEVELS.get(machine["simd"], ("portable",))


def limits(machine, level):
    """Environment variables that keep peers to a level on this machine; none at its highest."""
    if level == levels(machine)[0]:
        return {}
    return LIMITS[level]


def processor_seconds_of_machine():
    """Busy and stolen seconds of all cores since the start of the machine, or None."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, steal / tick


def processor_seconds_of(process):
    """What a process has taken, with its children."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor_seconds_of(child) for child in children)


def own_processor_seconds(processes):
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    own = sum(u.ru_utime + u.ru_stime for u in usages)
    return own + sum(process.processor_seconds() for process in processes)


def watched(processes, work):
    """The record that `work` makes, with the cores that other processes and other virtual machines
    took meanwhile; `processes` are those of the record that run on."""
    start, machine = time.monotonic(), processor_seconds_of_machine()
    own = own_processor_seconds(processes)
    record = work()
    wall = time.monotonic() - start
    record["turn_seconds"] = wall
    if machine is not None:
        busy, steal = (after - b for after, b in zip(processor_seconds_of_machine(), machine))
        others = busy - (own_processor_seconds(processes) - own)
        record["other_cores"], record["stolen_cores"] = max(0.0, others / wall), steal / wall
    return record


def started(stack, contenders):
    """The contenders, each ended with the stack."""
    all_of_them = []
    for contender in contenders:
        stack.callback(contender.close)
        all_of_them.append(contender)
    return all_of_them


def rounds(count, contenders, scene, before=lambda: None):
    """The turns of each contender: all take one, in order, then again, for so many rounds."""
    turns = [[] for _ in contenders]
    for number in range(1, count + 1):
        before()
        for contender, taken in zip(contenders, turns):
            taken.append(turn(contender, f"{scene}, round {number}"))
    return turns


def turn(contender, scene):
    """One of a contender, with what others took meanwhile."""
    record = watched([contender], contender.turn)
    say(f"{scene}: {contender.name}, batch {contender.batch}: {record['step_seconds']:.4f} s a step")
    return record


def entry(contender, program, turns):
    """What a record keeps of a contender."""
    kept = {"name": contender.name, "batch": contender.batch, "cores": contender.cores}
    return {"program": program} | kept | {"facts": contender.facts, "turns": turns}


def run_partita(options, folder, arguments, launcher=(), seconds_max=None):
    """What a verb prints; `launcher` stands before the command, which is ended after `seconds_max`."""
    # The cache starts empty: a prediction rests on what was measured for this record.
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    command = [*launcher, str(options.partita), *arguments]
    captured = {"capture_output": True, "text": True, "timeout": seconds_max}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, **captured)
    except subprocess.TimeoutExpired as expired:
        raise TooLong(f"partita {' '.join(arguments)} took longer than {seconds_max} s") from expired
    if done.returncode != 0:
        raise Failure(f"partita {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def output_of(*command):
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def describe_caches():
    """The caches of the first core, such as "32 KiB L1d, 1 MiB L2, 32 MiB L3"; empty if the system does not say."""
    texts = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind == "Instruction":
            continue
        kib = int(size.removesuffix("K"))
        amount = f"{kib} KiB" if kib % 1024 else f"{kib // 1024} MiB"
        texts.append(f"{amount} L{level}{'d' if kind == 'Data' else ''}")
    return ", ".join(texts)


def describe_machine(options, folder):
    doctor = json.loads(run_partita(options, folder, ["doctor", "--json"]))
    kept = ("processor", "cores_usable", "cores_physical", "simd", "memory_bytes")
    return {key: doctor[key] for key in kept} | {
        "caches": describe_caches(),
        "kernel": f"{platform.system()} {platform.release()}",
        "load_at_start": os.getloadavg()[0],
    }


def describe_versions(options, folder):
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    binaries = {"partita": options.partita, "kernels": options.kernels}
    return {
        "partita": run_partita(options, folder, ["--version"]).strip(),
        **{f"{name}_sha256": digest(path) for name, path in binaries.items()},
        "commit": output_of("git", "rev-parse", "HEAD"),
        "own_binary": (options.partita, options.kernels) == (DEFAULT_PARTITA, DEFAULT_KERNELS),
        "commit_changed": None if changed is None else changed != "",
        "rustc": output_of("rustc", "--version"),
        "python": platform.python_version(),
    }


def now():
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def head(options, folder, script, words):
    """What a record says first: when, by which command, on what."""
    return {
        "started": now(),
        "command": command_line(script, options, words),
        "machine": describe_machine(options, folder),
        "versions": describe_versions(options, folder),
        "rounds": options.rounds,
    }


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def add_options(parser):
    """Those of every record."""
    parser.add_argument("--partita", type=Path, default=DEFAULT_PARTITA)
    parser.add_argument(
        "--kernels", type=Path, default=DEFAULT_KERNELS, help="example `convolution` of partita-cpu"
    )
    parser.add_argument("--rounds", type=whole, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "records", help="folder of the record")


def parsed(parser):
    options = parser.parse_args()
    options.partita, options.kernels = options.partita.absolute(), options.kernels.absolute()
    for path, name in ((options.partita, "partita"), (options.kernels, "kernels")):
        if not path.is_file():
            raise Failure(f"there is no {name} binary: `make bench` builds it; --{name} names one")
    return options


def command_line(script, options, words):
    """What was typed, without folders of this machine."""
    words = ["python3", f"bench/{script}", "--rounds", str(options.rounds), *map(str, words)]
    for name, default in (("partita", DEFAULT_PARTITA), ("kernels", DEFAULT_KERNELS)):
        if getattr(options, name) != default:
            words += [f"--{name}", "PATH"]
    return " ".join(words)


def save(options, name, record, write):
    """Both files of a record; the text is what `write` makes of the raw data."""
    options.out.mkdir(parents=True, exist_ok=True)
    raw = json.dumps(record, indent=1)
    # Lists of numbers on one line each.
    raw = re.sub(r"\[[-+.\deE,\s]*\]", lambda found: " ".join(found[0].split()), raw)
    (options.out / f"{name}.json").write_text(raw + "\n")
    text = write(record, f"{name}.json")
    (options.out / f"{name}.md").write_text(text)
    say(text)


def take(parser, kind, record, write):
    """Takes the record that was asked for on the command line, or ends the process and says why not."""
    try:
        options = parsed(parser)
        with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
            taken = record(options, Path(folder))
        save(options, f"{taken['started'][:10]}-{kind}", taken, write)
    except Failure as failure:
        sys.exit(f"no record: {failure}")
    except KeyboardInterrupt:
        sys.exit("no record: interrupted")


def whole(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not possible; the least is 1")
    return number


def counted(count, noun):
    return f"{count} {noun}" + ("" if count == 1 else "s")


def say(line):
    print(line, flush=True)
