"""Records steps of ResNet-50 with one thread, two threads and two ranks of one thread, at every vector level; with
`--before` the binary of another commit takes its turn with two threads, too."""

from dataclasses import replace

from page import disturbance, head, spread, step_seconds, table, times
from runner import STEPS, Bench, Failure, Record, absolute, number, race
from trainings import Training, shapes

BATCH, IMAGES = 4, 36
# Ranks, strategy, threads of a rank.
WAYS = {"one thread": (1, "data=1", 1), "two threads": (1, "data=1", 2), "two ranks": (2, "data=2", 1)}


def training(bench: Bench, way: str, level: str) -> Training:
    ranks, strategy, threads = WAYS[way.partition(",")[0]]
    how = {"launcher": ("env", f"PARTITA_VECTORS={level}"), "words": ["--no-prediction"], "name": f"{way}, {level}"}
    scene = shapes("resnet50@224", IMAGES)
    return Training(bench, scene, strategy, BATCH, bench.options.steps, ranks, threads, **how, way=way, level=level)


def measure(bench: Bench) -> dict:
    shapes("resnet50@224", IMAGES).make(bench)
    levels = bench.levels[::-1]
    racers = [training(bench, way, level) for level in levels for way in WAYS]
    before = bench.options.before
    if before:
        if not before.is_file():
            raise Failure(f"there is no binary {before}")
        racers.append(training(replace(bench, partita=before), "two threads, before", levels[-1]))
    return {"images": IMAGES, "contenders": race(bench, racers, "ResNet-50")}


def page(record: dict, raw: str):
    yield head(record, "Threads beside ranks", f"""\
Seconds of a training step of ResNet-50 on {record['contenders'][0]['batch']} images of 224x224,\
 {record['images']} images an epoch. All take
turns, {record['rounds']} round(s); shown is the median of the turns, [least .. most], and how many times faster
than one thread that is. Raw data: `{raw}`.""")
    yield disturbance(record)
    for level in dict.fromkeys(one["facts"]["level"] for one in record["contenders"]):
        some = [one for one in record["contenders"] if one["facts"]["level"] == level]
        alone = step_seconds(next(one for one in some if one["cores"] == 1))
        rows = [[one["facts"]["way"], spread(times(one)), f"{alone / step_seconds(one):.2f} x"] for one in some]
        yield f"## `PARTITA_VECTORS={level}`\n\n" + table("cores | seconds a step> | of one thread>", rows)


OPTIONS = {"--steps": number(10, STEPS), "--before": {"type": absolute, "help": "a binary of another commit"}}

if __name__ == "__main__":
    Record("threads", measure, page, OPTIONS).take()
