"""Records trainings with loaders and validators in processes of their own beside trainings without.

The training keeps to the first core that this process may use, loaders and validators to the last one. `--delays` make
the other side slower step by step, as a weaker processor would be, until the training waits for it: the break-even.
Without offload an epoch takes the sum of training and validation; with it, the longer one of training and what is
offloaded.
"""

import re
import subprocess
from statistics import median

from page import disturbance, head, table
from runner import Bench, Failure, Record, counted, number, numbers, own_cores, race
from trainings import Training, cosmology, prepare

BATCH, UNIVERSES = 2, 12
# Random displacements make a sample costly to prepare.
ELASTIC = {"magnitude": 2, "spacing": 8}
AUGMENTATION = {"augmentation": {"flip": ["depth", "height", "width"], "noise": 0.01, "elastic": ELASTIC}}
# Which roles are processes of their own.
WAYS = (("loader",), ("validator",), ("loader", "validator"))


class Offloaded(Training):
    """A training on one core, with processes of these roles on another."""

    def __init__(self, bench: Bench, roles: tuple, delay: int) -> None:
        offload = {"offload": {f"{role}s": [f"unix:{role}"] for role in roles}} if roles else {}
        how = {"launcher": ("taskset", "-c", own_cores()[0]), "words": ["--no-prediction"]}
        how |= {"name": f"{' and '.join(roles) or 'no offload'}, delay {delay} ms", "settings": AUGMENTATION | offload}
        scene = cosmology(bench.options.size, UNIVERSES)
        facts = {"roles": list(roles), "delay_ms": delay}
        super().__init__(bench, scene, "data=1", BATCH, bench.options.steps, **how, **facts)

    def turn(self) -> dict:
        prepare(self.bench, self.settings())
        servers = [self.serve(role) for role in self.facts["roles"]]
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
            "delay_seconds": pieces * self.facts["delay_ms"] * 1e-3 / epochs,
            "validation_loss": [one["validation"]["loss"] for one in result["epochs"]],
            "warnings": result["warnings"],
        }

    def serve(self, role: str) -> subprocess.Popen:
        command = [self.bench.partita, "serve", "run.toml", "--role", role, "--listen", f"unix:{role}"]
        command += ["--cores", own_cores()[-1]]
        command += ["--delay", f"{self.facts['delay_ms']}ms"] if self.facts["delay_ms"] else []
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        server = subprocess.Popen([str(word) for word in command], cwd=self.bench.folder, **piped)
        if not server.stdout.readline():
            raise Failure(f"the {role} ended before it listened")
        return server


def ended(server: subprocess.Popen) -> str:
    """Ends a process, and gives what it said."""
    server.terminate()
    return server.communicate()[1].decode()


def measure(bench: Bench) -> dict:
    if len(own_cores()) < 2:
        raise Failure("loaders and validators need a core of their own, and there is one")
    size = bench.options.size
    cosmology(size, UNIVERSES).make(bench)
    delays = (0, *bench.options.delays)
    racers = [Offloaded(bench, (), 0), *(Offloaded(bench, roles, delay) for roles in WAYS for delay in delays)]
    entries = race(bench, racers, f"CosmoFlow at {counted(size, 'voxel')}")
    if len({str(turn["validation_loss"]) for entry in entries for turn in entry["turns"]}) > 1:
        raise Failure("validation losses differ, which must be equal bit for bit")
    return {"size": size, "universes": UNIVERSES, "contenders": entries}


def page(record: dict, raw: str):
    contenders = record["contenders"]
    yield head(record, "Loaders and validators", f"""\
Seconds of an epoch of CosmoFlow at {record['size']}^3, batch {contenders[0]['batch']}, {record['universes']} universes\
 to train on, with elastic deformation.
The training keeps to one core, loaders and validators to another; each of their pieces or validations is
delayed as shown. All take turns, {record['rounds']} round(s); shown is the median of the turns. All validation
losses are equal bit for bit. Raw data: `{raw}`.""")
    yield disturbance(record)
    keys = ("epoch_seconds", "delay_seconds")
    epochs, delays = ([median(turn[key] for turn in one["turns"]) for one in contenders] for key in keys)
    rows = [
        [" and ".join(one["facts"]["roles"]) or "nothing", f"{one['facts']['delay_ms']} ms", f"{delay:.3f}",
         f"{epoch:.3f}", f"{epoch / epochs[0]:.2f} x"]
        for one, epoch, delay in zip(contenders, epochs, delays)
    ]
    yield table("offloaded | delay> | delays of an epoch's pieces> | seconds an epoch> | of no offload>", rows)


OPTIONS = {
    "--size": number(32, "voxels per side of a universe"),
    "--steps": number(16, "steps of a turn, at least"),
    "--delays": numbers(20, 80, 320) | {"help": "in milliseconds"},
}

if __name__ == "__main__":
    Record("offload", measure, page, OPTIONS).take()
