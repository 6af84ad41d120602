"""Records training steps on two cores beside PyTorch's DistributedDataParallel and JAX.

CosmoFlow and 3D U-Net at 64 and ResNet-50 at 224, each with one batch for all contenders: Partita with
two ranks of one thread, its samples split and its space split; PyTorch with two processes over gloo,
in both of its memory layouts; JAX with two host devices, split in space and by samples. The peers
compute what `partita inspect MODEL --text` prints, read by peer_ddp.py and peer_jax.py.

The contenders take turns: all of them once is a round. A turn of Partita is a `partita train`, whose
first two steps it leaves out itself and whose steps read their samples from files; a turn of a peer is
one step that does not count, then as many as Partita's, with the batch in memory. The figure of a turn
is the median of its steps, that of a contender the median of its turns. 3D U-Net takes one round of
single steps, as a step of JAX takes minutes.

Writes records/<date>-peers.md and, with all raw figures, the same name with .json. A peer that this
Python lacks is left out, and the record says so.
"""

import argparse
import contextlib
import importlib.util
import json
import shutil
import sys
from dataclasses import dataclass

import contest
import record_peers_text
from contest import ROOT, Failure, Served, run_partita, say
from runs import Scene, Training, cosmology, segmentation, shapes

RANKS = 2


@dataclass(frozen=True)
class Match:
    """A network, the batch of all contenders, and how Partita splits it."""

    scene: Scene
    batch: int
    steps: int
    strategies: tuple
    rounds_max: int = 100


MATCHES = (
    Match(cosmology(64, 8), 2, 8, ("data=2", "depth=2", "depth=2; fc1..fc2: F=depth")),
    # With two samples a process PyTorch takes faster kernels than with one.
    Match(cosmology(64, 8), 4, 8, ("data=2", "depth=2", "depth=2; fc1..fc2: F=depth")),
    # A step of JAX takes minutes.
    Match(segmentation(64, 2), 2, 1, ("data=2", "depth=2"), rounds_max=1),
    Match(shapes("resnet50@224", 16), 8, 6, ("data=2", "height=2")),
)


class Peer(Served):
    """A peer that waits between its turns."""

    def __init__(self, name, script, words, match):
        command = [sys.executable, ROOT / "bench" / script, *words, "--batch", match.batch]
        super().__init__(name, command, RANKS)
        self.batch, self.count = match.batch, match.steps

    def turn(self):
        return self.timed(1, self.count)


class Torch(Peer):
    """DistributedDataParallel in a memory layout."""

    def __init__(self, match, text, layout):
        name = f"PyTorch DDP, {RANKS} processes x 1 thread, {layout}"
        words = [text, "--ranks", RANKS, "--layout", layout]
        super().__init__(name, "peer_ddp.py", words, match)


class Jax(Peer):
    """Host devices, split in a way."""

    def __init__(self, match, text, split):
        words = [text, "--devices", RANKS, "--split", split]
        super().__init__(f"JAX, {RANKS} host devices, {split}", "peer_jax.py", words, match)


PROGRAMS = {Training: "Partita", Torch: "PyTorch", Jax: "JAX"}


def contenders(options, folder, match, peers):
    for strategy in match.strategies:
        yield Training(options, folder, match.scene, strategy, match.batch, match.steps, ranks=RANKS)
    text = folder / f"{match.scene.model}.txt"
    text.write_text(run_partita(options, folder, ["inspect", match.scene.model, "--text"]))
    if peers["torch"]:
        for layout in ("default", "channels_last"):
            yield Torch(match, text, layout)
    if peers["jax"]:
        for split in ("space", "samples"):
            yield Jax(match, text, split)


def measure(options, folder, match, peers):
    scene = match.scene
    scene.make(options, folder)
    whole = json.loads(run_partita(options, folder, ["inspect", scene.model, "--json"]))
    with contextlib.ExitStack() as stack:
        racers = contest.started(stack, contenders(options, folder, match, peers))
        for racer in racers:
            own = racer.facts.get("parameters", whole["parameters"])
            if own != whole["parameters"]:
                raise Failure(f"{racer.name}: {own} parameters instead of {whole['parameters']}")
        title = f"{scene.model}, batch {match.batch}"
        turns = contest.rounds(min(options.rounds, match.rounds_max), racers, title)
        entries = [contest.entry(r, PROGRAMS[type(r)], t) for r, t in zip(racers, turns)]
    shutil.rmtree(folder / scene.data)
    return {
        "model": scene.model,
        "batch": match.batch,
        "parameters": whole["parameters"],
        "training_flops": whole["training_flops"],
        "contenders": entries,
    }


def record(options, folder):
    peers = {name: importlib.util.find_spec(name) is not None for name in ("torch", "jax")}
    for name in (name for name, found in peers.items() if not found):
        say(f"This Python lacks {name}, which is left out: pip install {name}")
    matches = [match for match in MATCHES if match.scene.model in options.models]
    head = contest.head(options, folder, "record_peers.py", ["--models", *options.models])
    networks = [measure(options, folder, match, peers) for match in matches]
    return head | {"finished": contest.now(), "peers": peers, "networks": networks}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    models = list(dict.fromkeys(match.scene.model for match in MATCHES))
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    contest.take(parser, "peers", record, record_peers_text.write)


if __name__ == "__main__":
    main()
