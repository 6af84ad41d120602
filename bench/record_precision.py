"""Records trainings in bf16 beside trainings in f32: losses of every epoch, memory and seconds a step.

How far two seeds are apart says which difference between precisions would mean anything. Seconds count only on a
machine that does nothing else.
"""

from statistics import mean, median

from page import head, spread, table, values_of
from runner import Bench, Record, number, say
from trainings import SCALED, Scene, settings_of, trained

UNIVERSES = ("cosmology", "--grid", 64, "--validation", 0.2, "--seed", 2026, "--universes")
IMAGES = ("shapes", "--size", 64, "--classes", 10, "--validation", 0.2, "--seed", 2026, "--images")


def train(bench: Bench, scene: Scene, settings: dict, seed: int, precision: str) -> dict:
    """Losses of each epoch, memory and seconds of a step of one training."""
    more = {"seed": seed, "precision": precision, "transform": scene.transform, "threads": 2}
    run = settings_of(scene.model, scene.data, epochs=bench.options.epochs, schedule="cosine", **settings, **more)
    result = trained(bench, run, "--no-prediction")
    validation = [epoch["validation"]["loss"] for epoch in result["epochs"]]
    say(f"{scene.model} in {precision}, seed {seed}: {validation[-1]:.4f}")
    return {
        "model": scene.model,
        "seed": seed,
        "precision": precision,
        "training_losses": [epoch["training_loss"] for epoch in result["epochs"]],
        "validation_losses": validation,
        "step_seconds": result["step_seconds_median"],
        "memory_bytes": result["memory"]["predicted_bytes"],
    }


def measure(bench: Bench) -> dict:
    options, trainings = bench.options, []
    universes = Scene("cosmoflow@64", (*UNIVERSES, options.universes), 0, "log1p")
    images = Scene("resnet50@64", (*IMAGES, options.images), 0, SCALED)
    for scene, settings in (
        (universes, {"batch": 4, "optimizer": "adam", "rate": 1e-3}),
        (images, {"batch": 16, "optimizer": "sgd", "rate": 5e-3}),
    ):
        scene.make(bench)
        for seed in range(1, options.seeds + 1):
            trainings += [train(bench, scene, settings, seed, precision) for precision in ("f32", "bf16")]
    kept = {key: getattr(options, key) for key in ("universes", "images", "epochs", "seeds")}
    return kept | {"trainings": trainings}


def page(record: dict, raw: str):
    yield head(record, "Trainings in bf16", f"""\
Activations, their gradients and messages in bf16, arithmetic and weights in f32, beside the same training in f32.
{record['seeds']} seeds each, {record['epochs']} epochs, two threads. Raw data: `{raw}`.""")
    for model in values_of(record["trainings"], "model"):
        single, half = (
            [one for one in record["trainings"] if (one["model"], one["precision"]) == (model, precision)]
            for precision in ("f32", "bf16")
        )
        yield f"""\
## {model}

Losses of validation after each epoch: mean over seeds [least .. most], and the mean distance between precisions at
the same seed beside that between two seeds in f32.

{table("epoch> | f32> | bf16> | distance of precisions> | distance of seeds>", losses(single, half))}

{table("| f32> | bf16> | bf16 / f32>", costs(single, half))}"""


def losses(single: list[dict], half: list[dict]):
    for epoch in range(len(single[0]["validation_losses"])):
        own, other = ([one["validation_losses"][epoch] for one in some] for some in (single, half))
        apart = mean(abs(a - b) for a, b in zip(own, other, strict=True))
        pairs = [abs(a - b) for at, a in enumerate(own) for b in own[:at]]
        spreads = (spread(values, middle=mean) for values in (own, other))
        yield [epoch + 1, *spreads, f"{apart:.4f}", f"{mean(pairs):.4f}" if pairs else "-"]


def costs(single: list[dict], half: list[dict]):
    for name, key, factor, form in (
        ("median step, ms", "step_seconds", 1e3, ".1f"),
        ("memory of the rank, MiB", "memory_bytes", 2.0**-20, ".0f"),
    ):
        a, b = (median(one[key] for one in some) * factor for some in (single, half))
        yield [name, f"{a:{form}}", f"{b:{form}}", f"{b / a:.2f}"]


OPTIONS = {"--universes": number(80), "--images": number(800), "--epochs": number(8), "--seeds": number(3)}

if __name__ == "__main__":
    Record("precision", measure, page, OPTIONS).take()
