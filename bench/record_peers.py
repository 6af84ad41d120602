"""Records training steps on two cores beside PyTorch's DistributedDataParallel and JAX.

Partita has two ranks of one thread, PyTorch two processes over gloo, in both of its memory layouts, JAX two host
devices, split in space and by samples; all have one batch. The peers compute what `partita inspect MODEL --text`
prints. A step of Partita reads its samples from files, a peer's batch is in memory. A peer that this Python lacks is
left out.
"""

import shutil
from functools import partial
from typing import Iterator

from page import disturbance, head, of, ratio, spread, step_seconds, table, times
from runner import Bench, Contender, Record, race, some
from trainings import (
    LAYOUTS, Served, Training, check_parameters, cosmology, has, model_text, peer, segmentation, shapes,
)

RANKS = 2
SPLITS = ("data=2", "depth=2", "depth=2; fc1..fc2: F=depth")
# Scene, batch, steps of a turn, strategies, and the most rounds: a step of JAX takes minutes for 3D U-Net.
MATCHES = (
    (cosmology(64, 8), 2, 8, SPLITS, 100),
    # With two samples a process PyTorch takes faster kernels than with one.
    (cosmology(64, 8), 4, 8, SPLITS, 100),
    (segmentation(64, 2), 2, 1, ("data=2", "depth=2"), 1),
    (shapes("resnet50@224", 16), 8, 6, ("data=2", "height=2"), 100),
)
MODELS = list(dict.fromkeys(scene.model for scene, *_ in MATCHES))
PROGRAMS = ("PyTorch", "JAX")


def contenders(bench: Bench, peers: dict, match: tuple) -> Iterator[Contender]:
    scene, batch, steps, strategies, _ = match
    for strategy in strategies:
        yield Training(bench, scene, strategy, batch, steps, RANKS)
    text = model_text(bench, scene.model)
    how = {"threads": RANKS, "batch": batch, "steps": steps}
    for layout in LAYOUTS if peers["torch"] else ():
        command = peer("peer_torch.py", text, "--ranks", RANKS, "--batch", batch, "--layout", layout)
        yield Served(f"PyTorch DDP, {RANKS} processes x 1 thread, {layout}", command, **how)
    for split in ("space", "samples") if peers["jax"] else ():
        command = peer("peer_jax.py", text, "--devices", RANKS, "--split", split, "--batch", batch)
        yield Served(f"JAX, {RANKS} host devices, {split}", command, program="JAX", **how)


def measure_network(bench: Bench, peers: dict, match: tuple) -> dict:
    scene, batch, *_, most = match
    scene.make(bench)
    whole = bench.json("inspect", scene.model)
    kept = {key: whole[key] for key in ("parameters", "training_flops")}
    check = partial(check_parameters, count=whole["parameters"])
    rounds = min(bench.options.rounds, most)
    entries = race(bench, contenders(bench, peers, match), f"{scene.model}, batch {batch}", rounds, check=check)
    shutil.rmtree(bench.folder / scene.data)
    return {"model": scene.model, "batch": batch} | kept | {"contenders": entries}


def measure(bench: Bench) -> dict:
    peers = {name: has(name) for name in ("torch", "jax")}
    wanted = [match for match in MATCHES if match[0].model in bench.options.models]
    return {"peers": peers, "networks": [measure_network(bench, peers, match) for match in wanted]}


def page(record: dict, raw: str):
    versions = [f"{program} {version(record, program)}" for program in PROGRAMS]
    yield head(record, "Training steps beside PyTorch DDP and JAX", f"""\
Seconds of a training step (forward, backward, Adam; float32) on two cores, one batch for all:
Partita with two ranks of one thread, PyTorch's DistributedDataParallel with two processes of
one thread over gloo, JAX with two host devices. PyTorch takes batch-norm statistics of each
process's samples, Partita and JAX those of the whole batch. A step of Partita includes reading
its samples from files; the peers' batch is in memory. {record['rounds']} rounds, but one of single
steps of 3D U-Net; shown is the median of the turns, [least .. most]. Raw data:
`{raw}`.""", ", ".join(versions))
    yield disturbance(record)
    for network in record["networks"]:
        entries, flops = network["contenders"], network["training_flops"] * network["batch"]
        yield f"## {network['model']}, batch {network['batch']}"
        yield f"{network['parameters']:,} parameters; {flops / 1e9:,.1f} Gflop a step."
        rivals = [min(of(program, entries), key=step_seconds, default=None) for program in PROGRAMS]
        rows = (row(one, rivals) for one in entries)
        yield table("who | seconds a step> | samples/s> | times the better PyTorch> | times the better JAX>", rows)
        if any(rivals):
            best, rival = min(of("Partita", entries), key=step_seconds), min(filter(None, rivals), key=step_seconds)
            yield f"""\
The better peer is {rival['name']}; Partita's best, `{best['facts']['strategy']}`,
does {ratio(rival, best)} times its samples a second; the aim is 2."""
        for one in of("JAX", entries):
            found = ", ".join(f"{count} {kind}" for kind, count in one["facts"]["collectives"].items() if count)
            yield f"{one['name']}: its program has {found}."


def row(one: dict, rivals: list[dict | None]) -> list:
    ratios = [ratio(rival, one) if one["program"] == "Partita" else "" for rival in rivals]
    return [one["name"], spread(times(one)), f"{one['batch'] / step_seconds(one):.2f}", *ratios]


def version(record: dict, program: str) -> str:
    found = (one["facts"]["version"] for network in record["networks"] for one in of(program, network["contenders"]))
    return next(found, "left out, as this Python lacks it")


if __name__ == "__main__":
    Record("peers", measure, page, {"--models": some(MODELS, MODELS)}).take()
