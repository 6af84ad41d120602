"""Records trainings with loaders and validators in processes of their own beside trainings without.

The training keeps to the first core that this process may use, loaders and validators to the second one:
what the training would do on its core, they do on another. `--delay` makes the other side slower step by
step, as a weaker processor would be, until the training waits for it: the break-even. Without offload an
epoch takes the sum of training and validation, and reading shares the core; with it, an epoch takes
the longer one of training and what is offloaded.

Writes records/<date>-offload.md and, with all raw figures, the same name with .json.
"""

import argparse
import re
import subprocess

import contest
import record_offload_text
from contest import Failure, counted, own_cores
from runs import Training, cosmology

BATCH = 2
UNIVERSES = 12
# Random displacements make a sample costly to prepare.
AUGMENTATION = """
[augmentation]
flip = ["depth", "height", "width"]
noise = 0.01
elastic = { magnitude = 2, spacing = 8 }
"""
# Which roles are processes of their own.
WAYS = ((), ("loader",), ("validator",), ("loader", "validator"))


class Offloaded(Training):
    """A training on one core, with processes of these roles on another."""

    def __init__(self, options, folder, roles, delay):
        scene = cosmology(options.size, UNIVERSES)
        launcher = ("taskset", "-c", own_cores()[0])
        arguments = (options, folder, scene, "data=1", BATCH, options.steps)
        super().__init__(*arguments, launcher=launcher)
        self.roles, self.delay = roles, delay
        self.words.append("--no-prediction")
        self.name = f"{' and '.join(roles) or 'no offload'}, delay {delay} ms"
        self.facts |= {"roles": list(roles), "delay_ms": delay}

    def run_file(self):
        text = super().run_file() + AUGMENTATION
        if self.roles:
            text += "\n[offload]\n" + "".join(f'{role}s = ["unix:{role}"]\n' for role in self.roles)
        return text

    def turn(self):
        self.prepare()
        servers = [self.serve(role) for role in self.roles]
        try:
            result = self.train()
        finally:
            said = [ended(server) for server in servers]
        pieces = sum(int(count) for text in said for count in re.findall(r": (\d+) pieces,", text))
        epochs = len(result["epochs"])
        return {
            "step_seconds": result["seconds"] / result["steps"],
            "epoch_seconds": result["seconds"] / epochs,
            # The least that the loader can take.
            "delay_seconds": pieces * self.delay * 1e-3 / epochs,
            "validation_loss": [one["validation"]["loss"] for one in result["epochs"]],
            "warnings": result["warnings"],
        }

    def serve(self, role):
        command = [self.options.partita, "serve", "run.toml", "--role", role, "--listen", f"unix:{role}"]
        command += ["--cores", own_cores()[-1]]
        if self.delay:
            command += ["--delay", f"{self.delay}ms"]
        command = [str(word) for word in command]
        server = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if not server.stdout.readline():
            raise Failure(f"the {role} ended before it listened")
        return server


def ended(server):
    """Ends a process, and gives what it said."""
    server.terminate()
    return server.communicate()[1].decode()


def record(options, folder):
    if len(own_cores()) < 2:
        raise Failure("loaders and validators need a core of their own, and there is one")
    words = ["--size", options.size, "--steps", options.steps, "--delays", *options.delays]
    head = contest.head(options, folder, "record_offload.py", words)
    cosmology(options.size, UNIVERSES).make(options, folder)
    racers = [Offloaded(options, folder, (), 0)]
    for roles in WAYS[1:]:
        racers += [Offloaded(options, folder, roles, delay) for delay in (0, *options.delays)]
    turns = contest.rounds(options.rounds, racers, f"CosmoFlow at {counted(options.size, 'voxel')}")
    losses = {str(turn["validation_loss"]) for taken in turns for turn in taken}
    if len(losses) > 1:
        raise Failure("validation losses differ, which must be equal bit for bit")
    entries = [contest.entry(racer, "Partita", taken) for racer, taken in zip(racers, turns)]
    facts = {"size": options.size, "universes": UNIVERSES}
    return head | {"finished": contest.now(), **facts, "contenders": entries}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--size", type=contest.whole, default=32, help="voxels per side of a universe")
    parser.add_argument("--steps", type=contest.whole, default=16, help="steps of a turn, at least")
    parser.add_argument(
        "--delays", type=contest.whole, nargs="+", default=[20, 80, 320], help="delays in milliseconds"
    )
    contest.take(parser, "offload", record, record_offload_text.write)


if __name__ == "__main__":
    main()
