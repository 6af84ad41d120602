"""Records training steps with halo exchanges behind the interior or before it, single or grouped.

Two ranks of one thread split each sample in space, on one machine as threads, and on two hosts with a link of limited
rate between them: network namespaces joined by virtual interfaces, processes under Open MPI. Two hosts need root,
iproute2 and Open MPI; without them the record says so and has one machine alone. Beside each strategy stand the
messages, their bytes and the flops of its program, as `partita lower` counts them.
"""

import os
import shutil
import subprocess

from page import disturbance, head, spread, step_seconds, table, times
from runner import ROOT, STEPS, Bench, Record, number, race, say
from trainings import Scene, Training, cosmology, shapes

RANKS = 2
HOSTS = ROOT / "crates" / "cli" / "tests" / "mpi" / "two-hosts.sh"
DEVICE, NETWORK = "partita-v", "10.213.77.0/24"
NAMESPACES = ("partita-a", "partita-b")
SLOTS = "10.213.77.1:1,10.213.77.2:1"
LAUNCHER = ["mpirun.openmpi", "--allow-run-as-root", "-n", RANKS, "--host", SLOTS]
LAUNCHER += ["--mca", "plm_rsh_agent", HOSTS, "--mca", "oob_tcp_if_include", NETWORK]
LAUNCHER += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", NETWORK]
# Both hosts have the same cores, of which each rank takes the first unless it is given its own.
LAUNCHER += ["--bind-to", "none", "sh", "-c", 'exec taskset -c "$OMPI_COMM_WORLD_RANK" "$@"', "sh"]

LAYERS, FILTERS, PIXELS = 12, 16, 256


def stack() -> str:
    """A model of convolutions alone, each with a ReLU, between an image and ten classes."""
    lines = ["model stack", f"input x channels=3 extent={PIXELS}x{PIXELS}"]
    for n in range(1, LAYERS + 1):
        above = f"relu{n - 1}" if n > 1 else "x"
        lines.append(f"conv{n} = conv {above} filters={FILTERS} kernel=3 pad=1 bias=false init=he_normal")
        lines.append(f"relu{n} = relu conv{n}")
    lines.append(f"pool = average_pool relu{LAYERS} kernel=32 stride=32 count_padding=true")
    lines += ["flatten = flatten pool", "fc = linear flatten features=10 bias=true"]
    return "\n".join([*lines, "loss = softmax_cross_entropy fc", ""])


def groups(size: int) -> str:
    """Words that group the stack's layers, so many in each."""
    return "".join(f"; conv{n}..relu{n + size - 1}: halo=grouped" for n in range(1, LAYERS + 1, size))


# Scene, batch, and strategies that take turns.
MATCHES = (
    (cosmology(64), 1, ("depth=2", "depth=2,overlap=off", "depth=2; conv5..act7: halo=grouped")),
    (
        shapes("stack.model", 16, 10, PIXELS),
        4,
        ("height=2", "height=2,overlap=off", *("height=2" + groups(size) for size in (2, 3, 4, 6, 12)))
        + ("height=2,overlap=off" + groups(3),),
    ),
)


def has_two_hosts() -> bool:
    if shutil.which("mpirun.openmpi") is None or os.geteuid() != 0:
        return False
    return subprocess.run([HOSTS, "up"], stderr=subprocess.DEVNULL, check=False).returncode == 0


def limit(rate: str) -> None:
    """Limits the link between the hosts, both ways."""
    for namespace in NAMESPACES:
        shaped = ["tc", "qdisc", "replace", "dev", DEVICE, "root", "tbf"]
        shaped += ["rate", rate, "burst", "16kb", "latency", "50ms"]
        subprocess.run(["ip", "netns", "exec", namespace, *shaped], check=True)


def measure_network(bench: Bench, scene: Scene, batch: int, strategies: tuple, hosts: str | None) -> dict:
    (bench.folder / "stack.model").write_text(stack())
    scene.make(bench)
    how = {"ranks": RANKS, "launcher": [HOSTS, "run", *LAUNCHER] if hosts else ()}
    racers = [Training(bench, scene, strategy, batch, bench.options.steps, **how) for strategy in strategies]
    entries = race(bench, racers, f"{scene.model}, {hosts or 'one machine'}")
    for entry, strategy in zip(entries, strategies):
        words = ["lower", scene.model, "--ranks", RANKS, "--batch", batch, "--strategy", strategy]
        count = bench.json(*words)["count"]
        entry |= {key: count[key] for key in ("flops", "messages", "message_bytes")}
    shutil.rmtree(bench.folder / scene.data)
    return {"model": scene.model, "batch": batch, "hosts": hosts, "contenders": entries}


def measure(bench: Bench) -> dict:
    places: list[str | None] = [None]
    if has_two_hosts():
        limit(bench.options.rate)
        places.append(f"two hosts, {bench.options.rate}")
    else:
        say("Two hosts need root, iproute2 and Open MPI: recording one machine alone.")
    try:
        networks = [measure_network(bench, *match, place) for place in places for match in MATCHES]
    finally:
        subprocess.run([HOSTS, "down"], check=False)
    return {"steps": bench.options.steps, "networks": networks}


def page(record: dict, raw: str):
    yield head(record, "Halo exchanges", f"""\
Seconds of a training step of two ranks of one thread that split each sample in space: with
exchanges behind the interior of a convolution (`overlap`, which needs no word) or before it, and
with an exchange for each layer or one for a group of layers. `stack` is twelve 3x3 convolutions
of 16 filters on images of 256x256. {record['rounds']} round(s), at least {record['steps']} steps a turn after two that
do not count; shown is the median of the turns, [least .. most], and its ratio to the first line.
Messages, their bytes and flops are those of both programs together. What other processes took is
known of the turns on one machine. Raw data: `{raw}`.""")
    # A rank on the second host is no descendant of the record, which would take it for another process.
    yield disturbance(record, [network for network in record["networks"] if network["hosts"] is None])
    for network in record["networks"]:
        place = network["hosts"] or "threads of one machine"
        first = step_seconds(network["contenders"][0])
        rows = [
            [f"`{one['facts']['strategy']}`", one["messages"], f"{one['message_bytes'] / 1e6:.2f}",
             f"{one['flops'] / 1e9:.2f}", spread(times(one)), f"{step_seconds(one) / first:.3f}"]
            for one in network["contenders"]
        ]
        yield f"## {network['model'].removesuffix('.model')}, batch {network['batch']}, {place}\n\n" + table(
            "strategy | messages> | MB> | Gflop> | seconds a step> | of the first>", rows
        )


OPTIONS = {
    "--steps": number(30, STEPS),
    "--rate": {"default": "1gbit", "help": "of the link between two hosts, as tc reads it"},
}

if __name__ == "__main__":
    Record("halos", measure, page, OPTIONS).take()
