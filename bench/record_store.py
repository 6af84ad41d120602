"""Records training steps with samples from files in every epoch, from memory, and with synthetic ones.

CosmoFlow at 64, or at `--size`, with one rank, and with two ranks whose samples and whose space is split. All ways take
turns: all of them once is a round. A turn is a `partita train`, whose first two steps it leaves out
itself; with a store the samples are read before the first step, and synthetic samples are made by the rank
itself. The files lie in the page cache of the system after the first turn, so what they cost is the least
that reading can cost.

Writes records/<date>-store.md and, with all raw figures, the same name with .json.
"""

import argparse

import contest
import record_store_text
from runs import Training, cosmology

UNIVERSES = 8
BATCH = 2
# Ranks and strategy.
WAYS = ((1, "data=1"), (2, "data=2"), (2, "depth=2"))
STORES = ("none", "memory", "synthetic")


class Stored(Training):
    """A training whose samples stay in memory or do not."""

    def __init__(self, options, folder, way, store):
        ranks, strategy = way
        scene = cosmology(options.size, UNIVERSES)
        super().__init__(options, folder, scene, strategy, BATCH, options.steps, ranks=ranks)
        self.words += ["--no-prediction", "--store", store]
        if store == "memory":
            self.words.append("--preload")
        self.name += f", store {store}"
        self.facts |= {"store": store}

    def turn(self):
        result = self.train()
        epochs = result["epochs"]
        kept = ("training_loss", "read_bytes", "memory_bytes", "sent_bytes", "received_bytes", "wait_seconds")
        return {
            "step_seconds": result["step_seconds_median"],
            "steps": result["steps_measured"],
            "digest": result["digest"],
            "epochs": [{key: epoch[key] for key in kept} for epoch in epochs],
        }


def record(options, folder):
    words = ["--size", options.size, "--steps", options.steps]
    head = contest.head(options, folder, "record_store.py", words)
    scene = cosmology(options.size, UNIVERSES)
    scene.make(options, folder)
    racers = [Stored(options, folder, way, store) for way in WAYS for store in STORES]
    turns = contest.rounds(options.rounds, racers, scene.model)
    entries = [contest.entry(racer, "Partita", taken) for racer, taken in zip(racers, turns)]
    return head | {"finished": contest.now(), "model": scene.model, "contenders": entries}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--size", type=contest.whole, default=64, help="voxels per side of a universe")
    parser.add_argument("--steps", type=contest.whole, default=20, help="timed steps of a turn, at least")
    contest.take(parser, "store", record, record_store_text.write)


if __name__ == "__main__":
    main()
