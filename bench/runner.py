"""Takes records: contenders in turns, with what else the machine did, and the facts of machine and versions.

A record is a `Record`: options, what is measured, and the parts of its page. A file `record_NAME.py` holds one; run, it
writes records/<date>-KIND.json, with all raw figures, and its page, KIND.md. With `--page FILE` it measures nothing and
prints the page of that JSON.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BINARIES = {
    "partita": ROOT / "target" / "release" / "partita",
    "kernels": ROOT / "target" / "release" / "examples" / "convolution",
}
# What `partita doctor` says of the processor, and the instruction levels that take turns there, the highest first.
LEVELS = {"AVX2": ("avx2",)} | dict.fromkeys(("AVX-512", "AVX-512 with BF16"), ("avx512", "avx2"))
# What keeps oneDNN, and all that PyTorch computes with, to a level below that of the processor.
LIMITS = {"avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
# The exit code of a wish that cannot be.
REFUSED = 2


class Failure(Exception):
    """The machine or a program did not do what the record needs."""


class TooLong(Failure):
    """A command was ended because it took longer than it may."""


@dataclass(frozen=True)
class Bench:
    """Where a record is taken, and with what."""

    options: argparse.Namespace
    folder: Path
    partita: Path
    machine: dict

    @property
    def levels(self) -> Sequence[str]:
        """The instruction levels of the processor, of those that were asked for, the highest first."""
        own = LEVELS.get(self.machine["simd"], ("portable",))
        chosen = [level for level in own if level in (getattr(self.options, "levels", None) or own)]
        if not chosen:
            raise Failure(f"this processor has only {' and '.join(own)} of these levels")
        return chosen

    def limits(self, level: str) -> dict:
        """Environment variables that keep peers to a level; none at the highest of this machine."""
        return {} if level == LEVELS.get(self.machine["simd"], ("portable",))[0] else LIMITS[level]

    def inside(self, name: str) -> "Bench":
        """The same in a new folder, whose cache is empty."""
        (self.folder / name).mkdir()
        return replace(self, folder=self.folder / name)

    def call(self, words: Sequence, launcher: Sequence = (), seconds_max: float | None = None):
        """A verb that ended, after `launcher`; the cache starts empty, so predictions rest on this record's kernels."""
        command = [str(word) for word in (*launcher, self.partita, *words)]
        variables = os.environ | {"XDG_CACHE_HOME": str(self.folder / "cache")}
        how = {"cwd": self.folder, "env": variables, "capture_output": True, "text": True, "timeout": seconds_max}
        try:
            return subprocess.run(command, **how)
        except subprocess.TimeoutExpired as expired:
            raise TooLong(f"partita {' '.join(map(str, words))} took longer than {seconds_max} s") from expired

    def run(self, *words, **how) -> str:
        """What a verb prints."""
        done = self.call(words, **how)
        if done.returncode != 0:
            raise Failure(f"partita {' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def json(self, *words, **how) -> Any:
        return json.loads(self.run(*words, "--json", **how))

    def asked(self, *words) -> dict:
        """What a verb answers, or why it refuses, and the seconds that it took."""
        start = time.monotonic()
        done = self.call(words)
        seconds = time.monotonic() - start
        if done.returncode == 0:
            return {"answer": done.stdout, "seconds": seconds}
        if done.returncode != REFUSED:
            raise Failure(f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}")
        return {"refusal": done.stderr.strip(), "seconds": seconds}


@dataclass(frozen=True)
class Record:
    """What a record measures, and the parts of its page; `options` are those of argparse by their flag."""

    kind: str
    measure: Callable[[Bench], dict]
    page: Callable[[dict, str], Iterable[str | None]]
    options: dict[str, dict]

    def words(self, options: argparse.Namespace) -> list[str]:
        """What was typed, without folders of this machine."""
        words = ["python3", f"bench/{Path(sys.argv[0]).name}", "--rounds", str(options.rounds)]
        for flag in self.options:
            value = getattr(options, flag.removeprefix("--").replace("-", "_"))
            if value is True:
                words.append(flag)
            elif isinstance(value, (list, tuple)):
                words += [flag, *map(str, value)]
            elif value not in (None, False):
                words += [flag, "PATH" if isinstance(value, Path) else shlex.quote(str(value))]
        for name, default in BINARIES.items():
            words += [] if getattr(options, name) == default else [f"--{name}", "PATH"]
        return words

    def text(self, record: dict, raw_name: str) -> str:
        return "\n\n".join(filter(None, self.page(record, raw_name))) + "\n"

    def take(self) -> None:
        """Takes the record that was asked for on the command line, or ends the process and says why not."""
        try:
            options = parsed(self)
            if options.page:
                print(self.text(json.loads(options.page.read_text()), options.page.name), end="")
                return
            with tempfile.TemporaryDirectory(prefix="partita-bench-") as folder:
                record = self.taken(options, Path(folder))
            self.save(options, record)
        except Failure as failure:
            sys.exit(f"no record: {failure}")
        except KeyboardInterrupt:
            sys.exit("no record: interrupted")

    def taken(self, options: argparse.Namespace, folder: Path) -> dict:
        bench = Bench(options, folder, options.partita, {})
        bench = replace(bench, machine=describe_machine(bench))
        head = {"started": now(), "command": " ".join(self.words(options)), "machine": bench.machine}
        head |= {"versions": describe_versions(bench), "rounds": options.rounds}
        return head | self.measure(bench) | {"finished": now()}

    def save(self, options: argparse.Namespace, record: dict) -> None:
        name = f"{record['started'][:10]}-{self.kind}"
        options.out.mkdir(parents=True, exist_ok=True)
        # Lists of numbers on one line each.
        raw = re.sub(r"\[[-+.\deE,\s]*\]", lambda found: " ".join(found[0].split()), json.dumps(record, indent=1))
        (options.out / f"{name}.json").write_text(raw + "\n")
        text = self.text(record, f"{name}.json")
        (options.out / f"{name}.md").write_text(text)
        say(text)


def parsed(record: Record) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    for name, default in BINARIES.items():
        parser.add_argument(f"--{name}", type=absolute, default=default)
    parser.add_argument("--rounds", type=whole, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "records", help="folder of the record")
    parser.add_argument("--page", type=Path, help="JSON of a record, whose page is printed; nothing is measured")
    for flag, words in record.options.items():
        parser.add_argument(flag, **words)
    options = parser.parse_args()
    for name in () if options.page else BINARIES:
        if not getattr(options, name).is_file():
            raise Failure(f"there is no {name} binary: `make bench` builds it; --{name} names one")
    return options


def whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not possible; the least is 1")
    return number


def absolute(text: str) -> Path:
    return Path(text).absolute()


def number(default: int, text: str | None = None) -> dict:
    """An option that is a whole number."""
    return {"type": whole, "default": default, "help": text}


def numbers(*default: int) -> dict:
    return {"type": whole, "nargs": "+", "default": list(default)}


def some(names: Sequence[str], default: Sequence[str] | None = None) -> dict:
    """An option that is some of these names."""
    return {"nargs": "+", "choices": names, "default": default}


STEPS = "timed steps of a turn, at least"


class Contender:
    """What takes turns: its turn is a dict with `step_seconds`. It has a name, a batch, and cores that it uses."""

    program = "Partita"
    name: str
    batch: int
    cores: int
    facts: dict

    def turn(self) -> dict:
        raise NotImplementedError

    def processor_seconds(self) -> float:
        """Of processes that run on between turns."""
        return 0.0

    def close(self) -> None:
        """Ends what still runs."""

    def entry(self, turns: list[dict]) -> dict:
        """What a record keeps."""
        kept = {key: getattr(self, key) for key in ("program", "name", "batch", "cores", "facts")}
        return kept | {"turns": turns}


def started(stack: contextlib.ExitStack, contenders: Iterable) -> list:
    """The contenders, each ended with the stack."""
    all_of_them = []
    for contender in contenders:
        stack.callback(contender.close)
        all_of_them.append(contender)
    return all_of_them


def race(
    bench: Bench,
    contenders: Iterable[Contender],
    title: str,
    rounds: int | None = None,
    before: Callable[[], None] = lambda: None,
    check: Callable[[Contender], None] = lambda _: None,
) -> list[dict]:
    """Entries of the contenders: all take one turn, in order, then again, for so many rounds. `check` comes before the
    first turn, `before` before each round."""
    with contextlib.ExitStack() as stack:
        racers = started(stack, contenders)
        for racer in racers:
            check(racer)
        turns: list[list[dict]] = [[] for _ in racers]
        for round_number in range(1, (rounds or bench.options.rounds) + 1):
            before()
            for racer, taken in zip(racers, turns):
                taken.append(turn(racer, f"{title}, round {round_number}"))
        return [racer.entry(taken) for racer, taken in zip(racers, turns)]


def turn(contender: Contender, title: str) -> dict:
    """One of a contender, with what others took meanwhile."""
    record = watched([contender], contender.turn)
    say(f"{title}: {contender.name}, batch {contender.batch}: {record['step_seconds']:.4f} s a step")
    return record


def watched(processes: Sequence, work: Callable[[], dict]) -> dict:
    """The record that `work` makes, with the cores that other processes and other virtual machines
    took meanwhile; `processes` are those of the record that run on."""
    start, machine, own = time.monotonic(), processor_seconds_of_machine(), own_processor_seconds(processes)
    record = work()
    wall = record["turn_seconds"] = time.monotonic() - start
    if machine is not None:
        busy, steal = (after - b for after, b in zip(processor_seconds_of_machine(), machine))
        others = busy - (own_processor_seconds(processes) - own)
        record["other_cores"], record["stolen_cores"] = max(0.0, others / wall), steal / wall
    return record


def processor_seconds_of_machine() -> tuple[float, float] | None:
    """Busy and stolen seconds of all cores since the start of the machine, if the system says them."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, fields)
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / tick, steal / tick


def processor_seconds_of(process: int | str) -> float:
    """What a process has taken, with its children."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(processor_seconds_of, children))


def own_processor_seconds(processes: Sequence = ()) -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usages) + sum(process.processor_seconds() for process in processes)


def own_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def on_cores(cores: Sequence[int]) -> Callable[[], None]:
    """What a child does first to keep to some cores."""
    return lambda: os.sched_setaffinity(0, cores)


def output_of(*command: str) -> str | None:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def describe_caches() -> str:
    """The caches of the first core, such as "32 KiB L1d, 1 MiB L2, 32 MiB L3"; empty if the system does not say."""
    texts = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            kib = int(size.removesuffix("K"))
            amount = f"{kib} KiB" if kib % 1024 else f"{kib // 1024} MiB"
            texts.append(f"{amount} L{level}{'d' if kind == 'Data' else ''}")
    return ", ".join(texts)


def describe_machine(bench: Bench) -> dict:
    doctor = bench.json("doctor")
    kept = {key: doctor[key] for key in ("processor", "cores_usable", "cores_physical", "simd", "memory_bytes")}
    kernel = f"{platform.system()} {platform.release()}"
    return kept | {"caches": describe_caches(), "kernel": kernel, "load_at_start": os.getloadavg()[0]}


def describe_versions(bench: Bench) -> dict:
    changed = output_of("git", "status", "--porcelain", "--untracked-files=no")
    binaries = {name: getattr(bench.options, name) for name in BINARIES}
    return {
        "partita": bench.run("--version").strip(),
        **{f"{name}_sha256": hashlib.sha256(path.read_bytes()).hexdigest() for name, path in binaries.items()},
        "commit": output_of("git", "rev-parse", "HEAD"),
        "own_binary": binaries == BINARIES,
        "commit_changed": None if changed is None else changed != "",
        "rustc": output_of("rustc", "--version"),
        "python": platform.python_version(),
    }


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def say(line: str) -> None:
    print(line, flush=True)
