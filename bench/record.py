"""Records training steps of CosmoFlow, Partita and PyTorch side by side on this machine's cores.

Partita predicts before it trains, from kernels measured here: `prediction.json` must be older than the run's first step
and hold what the run is compared with, or there is no record. PyTorch also runs with two samples a step: its choice of
convolution kernels depends on the batch, and with one small sample it takes slow ones.

Beside them two one-rank runs side by side, each pinned to its own core, say what two ranks would do if they had nothing
to tell each other. And each step is compared with its roofline. Without PyTorch the record is of Partita alone.
"""

import contextlib
import json
import os
import shutil
import subprocess
from statistics import median
from typing import Iterator

import roofline
from page import disturbance, head, of, percent, ratio, spread, step_seconds, table, times
from runner import Bench, Contender, Failure, Record, counted, number, numbers, on_cores, own_cores, race, started
from trainings import (
    LAYOUTS, WARMUP, Scene, Served, Training, cosmology, figures, gauge, has, model_text, peer, prepare, result_of,
    trained,
)


class Partita(Training):
    """A training with its prediction and its trace."""

    def train(self) -> dict:
        return trained(self.bench, self.settings(), "--prediction", *self.words, launcher=self.launcher)

    def turn(self) -> dict:
        result, out = self.train(), self.bench.folder / "out"
        prediction = json.loads((out / "prediction.json").read_text())
        times = [(out / f"{name}.json").stat().st_mtime for name in ("prediction", "result")]
        self.check(prediction, result, times[1] - times[0])
        return figures(result, "comparison", "memory") | {
            "predicted_seconds": prediction["iteration_seconds"],
            "prediction_basis": prediction["basis"],
            "prediction_breakdown": prediction["breakdown"],
            "prediction_stored_before_result_seconds": times[1] - times[0],
            "training_seconds": result["seconds"],
            "tasks": roofline.tasks(out),
        }

    def check(self, prediction: dict, result: dict, ahead: float) -> None:
        """That the prediction is of this program, was compared, and is older than any step."""
        compared = result["comparison"]["iteration"]["predicted"]
        if prediction["digest"] != result["digest"] or prediction["iteration_seconds"] != compared:
            raise Failure(f"{self.name}: prediction.json is not what the run was compared with")
        if ahead < result["seconds"]:
            raise Failure(
                f"{self.name}: prediction.json was stored {ahead:.2f} s before the result, but the"
                f" training took {result['seconds']:.2f} s"
            )

    def entry(self, turns: list[dict]) -> dict:
        return super().entry(turns) | {"tasks": roofline.merged(turns)}


class SideBySide(Contender):
    """One-rank runs that know nothing of each other, on a core each, started together.

    Its turn is one step of all of them, at the mean of their rates.
    """

    program = "Partita side by side"

    def __init__(self, bench: Bench, scene: Scene, count: int) -> None:
        self.name = f"Partita, {counted(count, 'run')} of 1 rank side by side"
        self.batch = self.cores = count
        self.facts = {"runs": count}
        self.runs = []
        for core in own_cores()[:count]:
            own = bench.inside(f"side{core}")
            (own.folder / scene.data).symlink_to(bench.folder / scene.data)
            self.runs.append((core, Training(own, scene, "data=1", 1, bench.options.steps)))
        # Measures the kernels, so that afterwards both begin to train at the same time.
        self.train()

    def train(self) -> None:
        processes = []
        for core, run in self.runs:
            prepare(run.bench, run.settings())
            how = {"cwd": run.bench.folder, "env": os.environ | {"XDG_CACHE_HOME": str(run.bench.folder / "cache")}}
            how |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "preexec_fn": on_cores([core])}
            processes.append(subprocess.Popen([str(run.bench.partita), "train", "run.toml"], **how))
        ends = [process.wait() for process in processes]
        if any(ends):
            raise Failure(f"{self.name}: ended with {ends}")

    def turn(self) -> dict:
        self.train()
        results = [result_of(run.bench) for _, run in self.runs]
        each = [result["step_seconds_median"] for result in results]
        mean = len(each) / sum(1 / seconds for seconds in each)
        return {"step_seconds": mean, "steps": min(result["steps_measured"] for result in results), "seconds": each}

    def close(self) -> None:
        for _, run in self.runs:
            shutil.rmtree(run.bench.folder)


def contenders(bench: Bench, scene: Scene, with_torch: bool) -> Iterator[Contender]:
    """All that take turns at a size, started; neighbors in a round compete for the same figure."""
    steps = bench.options.steps
    text = model_text(bench, scene.model)

    def torches(threads: int, batch: int) -> Iterator[Contender]:
        for layout in LAYOUTS if with_torch else ():
            command = peer("peer_torch.py", text, "--batch", batch, "--threads", threads, "--layout", layout)
            name = f"PyTorch, {counted(threads, 'thread')}, {layout}"
            yield Served(name, command, threads, batch=batch, steps=steps, warmup=WARMUP)

    yield Partita(bench, scene, "data=1", 1, steps)
    yield from torches(1, 1)
    yield from torches(1, 2)
    yield Partita(bench, scene, "data=1", 1, steps, threads=2)
    yield Partita(bench, scene, "depth=2", 1, steps, ranks=2)
    if len(own_cores()) >= 2:
        yield SideBySide(bench, scene, 2)
    yield from torches(2, 1)
    yield Partita(bench, scene, "data=2", 2, steps, ranks=2)
    yield from torches(2, 2)


def measure_size(bench: Bench, size: int, with_torch: bool) -> dict:
    scene = cosmology(size)
    seconds, rates = scene.make(bench), {"1": [], "2": []}
    with contextlib.ExitStack() as stack:
        gauges = started(stack, (gauge(bench, int(cores)) for cores in rates))

        def before() -> None:
            for one in gauges:
                rates[str(one.cores)].append(one.demand("machine"))

        entries = race(bench, contenders(bench, scene, with_torch), scene.model, before=before)
    shutil.rmtree(bench.folder / scene.data)
    return {"size": size, "dataset_seconds": seconds, "rates": rates, "contenders": entries}


def measure(bench: Bench) -> dict:
    with_torch = has("torch")
    sizes = [measure_size(bench, size, with_torch) for size in bench.options.sizes]
    return {"with_torch": with_torch, "steps": bench.options.steps, "sizes": sizes}


def page(record: dict, raw: str):
    peers = (one["facts"]["version"] for size in record["sizes"] for one in of("PyTorch", size["contenders"]))
    version = next((f"PyTorch {version}" for version in peers), "**without PyTorch, which this Python lacks**")
    made = ", ".join(f"{size['size']}^3 in {size['dataset_seconds']:.1f} s" for size in record["sizes"])
    yield head(record, "Training steps of CosmoFlow", f"""\
Seconds of a training step (forward, backward, Adam; float32) of `cosmoflow`, Partita and
PyTorch in turns on the same cores: {record['rounds']} round(s), at least {record['steps']} steps\
 a turn after two that do
not count. A turn counts with its median step; shown is the median of the turns, [least
.. most]. A step of Partita includes reading the sample from its HDF5 file, PyTorch's
batch is in memory. Raw data: `{raw}`.""", version, [f"Data: 6 universes, made by `partita data cosmology`: {made}"])
    yield disturbance(record)
    for size in record["sizes"]:
        entries = size["contenders"]
        yield f"## cosmoflow@{size['size']}"
        if record["with_torch"]:
            yield (
                "Ratios: samples a second over those of PyTorch's better layout with as many threads,"
                " at the same batch, and at whichever batch of 1 and 2 suits PyTorch better; above 1,"
                " Partita is faster. In brackets round by round."
            )
        columns = "who | batch> | seconds a step> | seconds a sample> | samples/s> | ratio, same batch>"
        yield table(columns + " | ratio, best batch>", (row(one, entries) for one in entries))
        yield backends(of("PyTorch", entries))
        yield side_by_side(entries)
        yield f"""\
Predicted (stored before the first step, from kernels measured for this record) and\
 measured seconds of an iteration; accuracy is 1 - |predicted - measured| / measured:

{table("who | predicted> | measured> | accuracy> | accuracy by round>", map(prediction, of("Partita", entries)))}"""
        yield from roofline.parts(size)


def seconds_per_sample(one: dict) -> float:
    return step_seconds(one) / one["batch"]


def row(one: dict, entries: list[dict]) -> list:
    ratios, sample = ["", ""], seconds_per_sample(one)
    if one["program"] == "Partita":
        # PyTorch's best per sample with as many threads.
        able = [other for other in of("PyTorch", entries) if other["cores"] == one["cores"]]
        same = [other for other in able if other["batch"] == one["batch"]]
        ratios = [ratio(min(some, key=seconds_per_sample, default=None), one) for some in (same, able)]
    return [one["name"], one["batch"], spread(times(one)), f"{sample:.4f}", f"{1 / sample:.2f}", *ratios]


def backends(peers: list[dict]) -> str | None:
    """Which convolutions PyTorch runs by its slow kernels, where it says so."""
    slow: dict[int, int] = {}
    known = [(one["batch"], one["facts"].get("convolution_backends")) for one in peers]
    known = [(batch, names) for batch, names in known if names]
    for batch, names in known:
        slow[batch] = max(slow.get(batch, 0), sum("slow" in name.lower() for name in names))
    if not any(slow.values()):
        return None
    told = ", ".join(f"{count} of {len(known[0][1])} at batch {batch}" for batch, count in sorted(slow.items()))
    return f"Of the convolutions PyTorch runs by its slow kernels (not oneDNN): {told}; it chooses by batch and shape."


def side_by_side(entries: list[dict]) -> str | None:
    """Two ranks that talk, against as many runs that do not; None without them."""
    alone = next(iter(of("Partita side by side", entries)), None)
    if alone is None:
        return None
    runs = alone["facts"]["runs"]
    some = [one for one in of("Partita", entries) if one["facts"]["ranks"] == runs]
    rows = ([one["name"], one["batch"], ratio(alone, one, percent)] for one in some)
    return f"""\
Two ranks against {runs} one-rank runs side by side, which need not talk\
 and share only the memory's bandwidth: ratio of samples a second, in brackets round by\
 round; the aim is 95 %.

{table("who | batch> | ratio>", rows)}"""


def prediction(one: dict) -> list:
    iterations = [turn["comparison"]["iteration"] for turn in one["turns"]]
    middle = [median(iteration[key] for iteration in iterations) for key in ("predicted", "measured")]
    rounds = ", ".join(accuracy(iteration["predicted"], iteration["measured"]) for iteration in iterations)
    return [one["name"], *(f"{seconds:.4f}" for seconds in middle), accuracy(*middle), rounds]


def accuracy(predicted: float, measured: float) -> str:
    return percent(1 - abs(predicted - measured) / measured)


OPTIONS = {
    "--steps": number(8, "timed steps of a turn"),
    "--sizes": numbers(64, 128) | {"choices": (32, 64, 128)},
}

if __name__ == "__main__":
    Record("cosmoflow-step", measure, page, OPTIONS).take()
