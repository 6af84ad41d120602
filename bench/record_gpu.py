"""Records training steps on a device of OpenCL beside those on the processor.

CosmoFlow 32, 3D U-Net 32 and ResNet-50 at 64 pixels, on one rank and under a split of each, whose ranks share the
device, and on one rank in f16. A strategy and a device take turns: all of them once is a round. Beside the seconds of a step stand the losses: the
largest distance from those of one rank on the processor, relative to these. The same samples come in the same order
everywhere, so nothing but the order of sums may differ. Programs are compared before implementations are chosen.

Writes records/<date>-gpu.md and, with all raw figures, the same name with .json.
"""

import argparse
import hashlib
import json

import contest
import record_gpu_text
from contest import Failure, run_partita
from runs import Scene, Training, cosmology

# Scene, batch, a strategy of two ranks, and how many steps of a turn are timed at most.
MATCHES = (
    (cosmology(32, 12), 4, "depth=2", 100),
    (
        Scene("unet3d@32", ("segmentation", "--grid", 32, "--volumes", 3, "--validation", 1 / 3), 2, "{scale = 0.01}"),
        2,
        "depth=2",
        1,
    ),
    (
        Scene(
            "resnet50@64",
            ("shapes", "--size", 64, "--images", 36, "--classes", 10, "--validation", 1 / 3),
            24,
            "{scale = 0.01}",
        ),
        8,
        "data=2",
        100,
    ),
)


class OnDevice(Training):
    """A training on a device."""

    def __init__(self, options, folder, match, device, strategy, ranks, precision):
        scene, batch, _, steps_max = match
        steps = min(options.steps, steps_max)
        super().__init__(options, folder, scene, strategy, batch, steps, ranks=ranks)
        self.words += ["--no-prediction", "--device", device]
        self.name = f"{device}, {strategy}, {precision}"
        self.facts |= {"device": device, "precision": precision}

    def run_file(self):
        return f'precision = "{self.facts["precision"]}"\n' + super().run_file()

    def turn(self):
        result = self.train()
        losses = [number for epoch in result["epochs"] for number in (epoch["training_loss"], epoch["validation"]["loss"])]
        return {
            "step_seconds": result["step_seconds_median"],
            "steps": result["steps_measured"],
            "digest": result["digest"],
            "losses": losses,
            "arena_bytes": result["memory"]["predicted_bytes"],
            "loss_scale": result.get("loss_scale"),
        }


def facts(options, folder):
    """What `partita doctor` says of the device."""
    found = json.loads(run_partita(options, folder, ["doctor", "--json"]))["devices"]
    of_kind = [device for device in found if device["device"] == options.device]
    if not of_kind:
        raise Failure(f"there is no device for --device {options.device}: {found}")
    return of_kind[0]


def digests(options, folder, match, strategy, ranks):
    """Of the program before implementations are chosen, for the kernels of the processor and those of the device."""
    scene, batch, _, _ = match
    words = ["lower", scene.model, "--ranks", str(ranks), "--batch", str(batch), "--strategy", strategy]
    texts = [run_partita(options, folder, [*words, "--after", "fuse", "--kernels", one]) for one in ("cpu", options.device)]
    return {"strategy": strategy, "sha256": [hashlib.sha256(text.encode()).hexdigest() for text in texts]}


def measure(options, folder, match):
    scene, batch, split, _ = match
    scene.make(options, folder)
    contenders = [
        OnDevice(options, folder, match, device, strategy, ranks, precision)
        for device in ("cpu", options.device)
        for strategy, ranks, precision in (("data=1", 1, "f32"), (split, 2, "f32"), ("data=1", 1, "f16"))
    ]
    turns = contest.rounds(options.rounds, contenders, scene.model)
    entries = [contest.entry(racer, "Partita", turns) for racer, turns in zip(contenders, turns, strict=True)]
    programs = [digests(options, folder, match, strategy, ranks) for strategy, ranks in (("data=1", 1), (split, 2))]
    return {"model": scene.model, "batch": batch, "contenders": entries, "programs": programs}


def record(options, folder):
    words = ["--device", options.device, "--steps", options.steps]
    head = contest.head(options, folder, "record_gpu.py", words)
    device = facts(options, folder)
    measured = [measure(options, folder, match) for match in MATCHES]
    return head | {"finished": contest.now(), "device": device, "networks": measured}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    contest.add_options(parser)
    parser.add_argument("--device", choices=("gpu", "software"), default="software")
    parser.add_argument("--steps", type=contest.whole, default=8, help="timed steps of a turn, at least")
    contest.take(parser, "gpu", record, record_gpu_text.write)


if __name__ == "__main__":
    main()
