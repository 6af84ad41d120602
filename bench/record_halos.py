"""Records training steps with halo exchanges behind the interior or before it, single or grouped.

Two ranks of one thread split each sample in space, on one machine as threads, and on two hosts with a
link of limited rate between them: network namespaces joined by virtual interfaces, processes under
Open MPI. The networks are CosmoFlow, and a stack of twelve convolutions on large images, where groups
of 2, 3, 4, 6 and 12 layers share one wider exchange and compute anew what they need of the neighbor's
part between them.

The strategies take turns: all of them once is a round. A turn is a `partita train`, its figure the
median of its steps, that of a strategy the median of its turns. Beside each stand the messages, their
bytes and the flops of its program, as `partita lower` counts them.

Writes records/<date>-halos.md and, with all raw figures, the same name with .json. Two hosts need root,
iproute2 and Open MPI; without them the record says so and has one machine alone.
"""

import argparse
import json
import os
import shutil
import subprocess
from dataclasses import dataclass

import contest
import record_halos_text
from contest import ROOT, run_partita, say
from runs import Scene, Training, cosmology

RANKS = 2
HOSTS = ROOT / "crates" / "cli" / "tests" / "mpi" / "two-hosts.sh"
DEVICE, NETWORK = "partita-v", "10.213.77.0/24"
NAMESPACES = ("partita-a", "partita-b")
SLOTS = "10.213.77.1:1,10.213.77.2:1"
LAUNCHER = ["mpirun.openmpi", "--allow-run-as-root", "-n", str(RANKS), "--host", SLOTS]
LAUNCHER += ["--mca", "plm_rsh_agent", str(HOSTS), "--mca", "oob_tcp_if_include", NETWORK]
LAUNCHER += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", NETWORK]
# Both hosts have the same cores, of which each rank takes the first unless it is given its own.
LAUNCHER += ["--bind-to", "none", "sh", "-c", 'exec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"', "sh"]

LAYERS, FILTERS, PIXELS = 12, 16, 256


def stack():
    """A model of convolutions alone, each with a ReLU, between an image and ten classes."""
    lines = ["model stack", f"input x channels=3 extent={PIXELS}x{PIXELS}"]
    last = "x"
    for n in range(1, LAYERS + 1):
        lines.append(f"conv{n} = conv {last} filters={FILTERS} kernel=3 pad=1 bias=false init=he_normal")
        lines.append(f"relu{n} = relu conv{n}")
        last = f"relu{n}"
    lines.append(f"pool = average_pool {last} kernel=32 stride=32 count_padding=true")
    lines += ["flatten = flatten pool", "fc = linear flatten features=10 bias=true"]
    return "\n".join([*lines, "loss = softmax_cross_entropy fc", ""])


def groups(of):
    """Words that group the stack's layers, so many in each."""
    firsts = range(1, LAYERS + 1, of)
    return "".join(f"; conv{n}..relu{n + of - 1}: halo=grouped" for n in firsts)


@dataclass(frozen=True)
class Match:
    """A network, its batch, and the strategies that take turns."""

    scene: Scene
    batch: int
    strategies: tuple


def matches():
    pixels = ("shapes", "--size", PIXELS, "--images", 24, "--classes", 10, "--validation", 1 / 3)
    layers = Scene("stack.model", pixels, 16, "{scale = 0.01}")
    tiles = "height=2"
    grouped = tuple(tiles + groups(of) for of in (2, 3, 4, 6, 12))
    late = "; conv5..act7: halo=grouped"
    return (
        Match(cosmology(64), 1, ("depth=2", "depth=2,overlap=off", "depth=2" + late)),
        Match(layers, 4, (tiles, tiles + ",overlap=off", *grouped, f"{tiles},overlap=off" + groups(3))),
    )


def has_two_hosts():
    if shutil.which("mpirun.openmpi") is None or os.geteuid() != 0:
        return False
    return subprocess.run([HOSTS, "up"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def limit(rate):
    """Limits the link between the hosts, both ways."""
    for namespace in NAMESPACES:
        shaped = ["tc", "qdisc", "replace", "dev", DEVICE, "root", "tbf"]
        shaped += ["rate", rate, "burst", "16kb", "latency", "50ms"]
        subprocess.run(["ip", "netns", "exec", namespace, *shaped], check=True)


def measure(options, folder, match, hosts):
    if match.scene.model.endswith(".model"):
        (folder / match.scene.model).write_text(stack())
    match.scene.make(options, folder)
    launcher = [HOSTS, "run", *LAUNCHER] if hosts else []
    racers = [
        Training(options, folder, match.scene, s, match.batch, options.steps, RANKS, launcher=launcher)
        for s in match.strategies
    ]
    title = f"{match.scene.model}, {hosts or 'one machine'}"
    turns = contest.rounds(options.rounds, racers, title)
    entries = [
        contest.entry(racer, "Partita", taken) | traffic(options, folder, match, racer.strategy)
        for racer, taken in zip(racers, turns)
    ]
    shutil.rmtree(folder / match.scene.data)
    return {
        "model": match.scene.model,
        "batch": match.batch,
        "hosts": hosts,
        "contenders": entries,
    }


def traffic(options, folder, match, strategy):
    """What the program of a strategy counts, over both ranks."""
    words = ["lower", match.scene.model, "--ranks", RANKS, "--batch", match.batch]
    words += ["--strategy", strategy, "--json"]
    count = json.loads(run_partita(options, folder, map(str, words)))["count"]
    return {key: count[key] for key in ("flops", "messages", "message_bytes")}


def record(options, folder):
    words = ["--steps", options.steps, "--rate", options.rate]
    head = contest.head(options, folder, "record_halos.py", words)
    places = [None]
    if has_two_hosts():
        limit(options.rate)
        places.append(f"two hosts, {options.rate}")
    else:
        say("Two hosts need root, iproute2 and Open MPI: recording one machine alone.")
    try:
        measured = [measure(options, folder, match, place) for place in places for match in matches()]
    finally:
        subprocess.run([HOSTS, "down"], check=False)
    return head | {"finished": contest.now(), "steps": options.steps, "networks": measured}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--steps", type=contest.whole, default=30, help="timed steps of a turn, at least")
    parser.add_argument("--rate", default="1gbit", help="of the link between two hosts, as tc reads it")
    contest.take(parser, "halos", record, record_halos_text.write)


if __name__ == "__main__":
    main()
