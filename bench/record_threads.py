"""Records training steps of ResNet-50 with one thread, two threads and two ranks of one thread.

A second thread and a second rank take turns with one thread at every vector level that this processor
has. With `--before` the binary of another commit takes its turn with two threads, too.

Writes records/<date>-threads.md and, with all raw figures, the same name with .json.
"""

import argparse
from pathlib import Path

import contest
import record_threads_text
from contest import Failure
from runs import Training, shapes

BATCH = 4
IMAGES = 36
# Name, ranks, strategy, threads of a rank.
WAYS = (
    ("one thread", 1, "data=1", 1),
    ("two threads", 1, "data=1", 2),
    ("two ranks", 2, "data=2", 1),
)


class Leveled(Training):
    """A training whose kernels use no more than a vector level."""

    def __init__(self, options, folder, way, level):
        name, ranks, strategy, threads = way
        launcher = ("env", f"PARTITA_VECTORS={level}")
        arguments = (options, folder, shapes("resnet50@224", IMAGES), strategy, BATCH, options.steps)
        super().__init__(*arguments, ranks, threads, launcher)
        self.words.append("--no-prediction")
        self.name = f"{name}, {level}"
        self.facts |= {"way": name, "level": level}


def record(options, folder):
    words = ["--steps", options.steps, *(["--before", "PATH"] if options.before else [])]
    head = contest.head(options, folder, "record_threads.py", words)
    shapes("resnet50@224", IMAGES).make(options, folder)
    levels = contest.levels(head["machine"])[::-1]
    racers = [Leveled(options, folder, way, level) for level in levels for way in WAYS]
    if options.before:
        if not options.before.is_file():
            raise Failure(f"there is no binary {options.before}")
        earlier = argparse.Namespace(**vars(options) | {"partita": options.before.absolute()})
        way = ("two threads, before", *WAYS[1][1:])
        racers.append(Leveled(earlier, folder, way, levels[-1]))
    turns = contest.rounds(options.rounds, racers, "ResNet-50")
    entries = [contest.entry(racer, "Partita", taken) for racer, taken in zip(racers, turns)]
    return head | {"finished": contest.now(), "images": IMAGES, "contenders": entries}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--steps", type=contest.whole, default=10, help="timed steps of a turn, at least")
    parser.add_argument("--before", type=Path, help="a binary of another commit, with two threads")
    contest.take(parser, "threads", record, record_threads_text.write)


if __name__ == "__main__":
    main()
