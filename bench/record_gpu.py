"""Records training steps on a device of OpenCL beside those on the processor.

On one rank, under a split whose two ranks share the device, and on one rank in f16. Beside the seconds of a step stand
the losses. The same samples come in the same order everywhere, so nothing but the order of sums may differ. Programs
are compared before implementations are chosen.
"""

import hashlib

from page import head, step_seconds, table
from runner import STEPS, Bench, Failure, Record, number, race
from trainings import Scene, Training, cosmology, figures, segmentation, shapes

# Scene, batch, a strategy of two ranks, and how many steps of a turn are timed at most.
MATCHES = (
    (cosmology(32, 12), 4, "depth=2", 100),
    (segmentation(32, 2), 2, "depth=2", 1),
    (shapes("resnet50@64", 24, 10), 8, "data=2", 100),
)


def figures_with_losses(result: dict) -> dict:
    losses = [loss for epoch in result["epochs"] for loss in (epoch["training_loss"], epoch["validation"]["loss"])]
    more = {"arena_bytes": result["memory"]["predicted_bytes"], "loss_scale": result.get("loss_scale")}
    return figures(result) | {"losses": losses} | more


def program(bench: Bench, scene: Scene, batch: int, strategy: str, ranks: int) -> dict:
    """Digests of the program before implementations are chosen, for the kernels of the processor and of the device."""
    words = ["lower", scene.model, "--ranks", ranks, "--batch", batch, "--strategy", strategy, "--after", "fuse"]
    texts = [bench.run(*words, "--kernels", kernels) for kernels in ("cpu", bench.options.device)]
    return {"strategy": strategy, "sha256": [hashlib.sha256(text.encode()).hexdigest() for text in texts]}


def measure_network(bench: Bench, scene: Scene, batch: int, split: str, steps_max: int) -> dict:
    scene.make(bench)
    ways, steps = (("data=1", 1, "f32"), (split, 2, "f32"), ("data=1", 1, "f16")), min(bench.options.steps, steps_max)

    def training(device: str, strategy: str, ranks: int, precision: str) -> Training:
        how = {"words": ["--no-prediction", "--device", device], "settings": {"precision": precision}}
        how |= {"name": f"{device}, {strategy}, {precision}", "figures": figures_with_losses}
        return Training(bench, scene, strategy, batch, steps, ranks, **how, device=device, precision=precision)

    racers = [training(device, *way) for device in ("cpu", bench.options.device) for way in ways]
    entries = race(bench, racers, scene.model)
    programs = [program(bench, scene, batch, strategy, ranks) for strategy, ranks, _ in ways[:2]]
    return {"model": scene.model, "batch": batch, "contenders": entries, "programs": programs}


def measure(bench: Bench) -> dict:
    found = bench.json("doctor")["devices"]
    device = next((one for one in found if one["device"] == bench.options.device), None)
    if device is None:
        raise Failure(f"there is no device for --device {bench.options.device}: {found}")
    return {"device": device, "networks": [measure_network(bench, *match) for match in MATCHES]}


def page(record: dict, raw: str):
    device, networks = record["device"], record["networks"]
    said = f"{device['name']}, {device['platform']}, {device['version']}, {device['units']} units."
    yield head(record, "Steps on a device", f"""\
`--device {device['device']}`: {said}
Two ranks share it. The processor computes with one thread a rank. Raw data: `{raw}`.""")
    columns = "network, batch | strategy | precision | processor> | device> | device / processor>"
    columns += " | losses, processor> | losses, device>"
    yield f"""\
Milliseconds a step (median), and times that of the processor under the same strategy. Then the largest distance\
 of a loss
of an epoch from that of one rank on the processor in f32, for both: what rounding alone makes of a training is seen\
 where
the processor's own split differs. In f16 the scale of the gradients is the default, and the processor works on copies\
 in f32.

{table(columns, (row for network in networks for row in rows(network)))}"""
    skipped = [text for network in networks if (text := lagging(network, device["device"]))]
    if skipped:
        yield f"Updates skipped in f16 until the loss scale fitted, by which losses lag: {', '.join(skipped)}."
    programs = ((network, one, *one["sha256"]) for network in networks for one in network["programs"])
    compared = (
        [name(network), one["strategy"], a[:16], b[:16], "yes" if a == b else "**no**"]
        for network, one, a, b in programs
    )
    yield f"""\
Before implementations, their workspaces and packed weights are chosen, the program (`partita lower --after fuse`) of\
 the device should be that of
the processor:

{table("network, batch | strategy | processor, SHA-256 | device | equal", compared)}"""


def name(network: dict) -> str:
    return f"{network['model']}, {network['batch']}"


def rows(network: dict):
    key = ("device", "strategy", "precision")
    entries = {tuple(one["facts"][word] for word in key): one for one in network["contenders"]}
    exact = entries["cpu", "data=1", "f32"]["turns"][0]["losses"]

    def far(entry: dict) -> float:
        pairs = zip(entry["turns"][0]["losses"], exact, strict=True)
        return max(abs(x - y) / max(abs(y), 1e-3) for x, y in pairs)

    for (device, strategy, precision), own in entries.items():
        if device != "cpu":
            other = entries["cpu", strategy, precision]
            a, b = step_seconds(other), step_seconds(own)
            figures_of = [f"{a * 1e3:.1f}", f"{b * 1e3:.1f}", f"{b / a:.1f}", f"{far(other):.1e}", f"{far(own):.1e}"]
            yield [name(network), strategy, precision, *figures_of]


def lagging(network: dict, device: str) -> str | None:
    """Of a network whose first updates in f16 were skipped."""
    scales = {one["facts"]["device"]: one["turns"][-1]["loss_scale"] for one in network["contenders"]}
    skipped = {where: scale["skipped"] for where, scale in scales.items() if scale}
    if not any(skipped.values()):
        return None
    return f"{network['model']} {skipped['cpu']} on the processor and {skipped[device]} on the device"


OPTIONS = {"--device": {"choices": ("gpu", "software"), "default": "software"}, "--steps": number(8, STEPS)}

if __name__ == "__main__":
    Record("gpu", measure, page, OPTIONS).take()
