"""Records training steps of CosmoFlow with samples from files in every epoch, from memory, and with synthetic ones.

With a store the samples are read before the first step; synthetic samples are made by the rank itself. The files lie in
the page cache of the system after the first turn, so what they cost is the least that reading can cost.
"""

from page import disturbance, head, spread, step_seconds, table, times
from runner import STEPS, Bench, Record, counted, number, race
from trainings import Training, cosmology, figures

UNIVERSES, BATCH = 8, 2
# Ranks and strategy.
WAYS = ((1, "data=1"), (2, "data=2"), (2, "depth=2"))
STORES = {"none": (), "memory": ("--preload",), "synthetic": ()}
KEPT = ("training_loss", "read_bytes", "memory_bytes", "sent_bytes", "received_bytes", "wait_seconds")


def figures_of_epochs(result: dict) -> dict:
    return figures(result) | {"epochs": [{key: epoch[key] for key in KEPT} for epoch in result["epochs"]]}


def training(bench: Bench, ranks: int, strategy: str, store: str) -> Training:
    how = {"words": ["--no-prediction", "--store", store, *STORES[store]], "figures": figures_of_epochs, "store": store}
    how["name"] = f"Partita, {counted(ranks, 'rank')} x 1 thread, {strategy}, store {store}"
    scene = cosmology(bench.options.size, UNIVERSES)
    return Training(bench, scene, strategy, BATCH, bench.options.steps, ranks, **how)


def measure(bench: Bench) -> dict:
    scene = cosmology(bench.options.size, UNIVERSES)
    scene.make(bench)
    racers = [training(bench, *way, store) for way in WAYS for store in STORES]
    return {"model": scene.model, "contenders": race(bench, racers, scene.model)}


def page(record: dict, raw: str):
    yield head(record, "Samples in memory", f"""\
Seconds of a training step of {record['model']}, batch {record['contenders'][0]['batch']}, with samples from\
 files, from memory, and synthetic ones. All take turns,
{record['rounds']} round(s); shown is the median of the turns, [least .. most]. Bytes are those of the last\
 epoch of a turn, the wait is that of the rank that
waited longest for samples in it. `of synthetic` is the speed beside that of synthetic samples under the same\
 strategy. Raw data: `{raw}`.""")
    yield disturbance(record)
    columns = "ranks> | strategy | store | seconds a step> | samples/s> | of synthetic> | from files>"
    yield table(f"{columns} | from other ranks> | wait>", rows(record["contenders"]))


def rows(contenders: list[dict]):
    ways = {(one["facts"]["strategy"], one["facts"]["store"]): step_seconds(one) for one in contenders}
    for one in contenders:
        facts, last, seconds = one["facts"], one["turns"][-1]["epochs"][-1], step_seconds(one)
        share = f"{100 * ways[facts['strategy'], 'synthetic'] / seconds:.1f} %"
        read = [f"{last[key]} B" for key in ("read_bytes", "received_bytes")]
        yield [
            facts["ranks"], f"`{facts['strategy']}`", facts["store"], spread(times(one)),
            f"{one['batch'] / seconds:.2f}", share, *read, f"{1e3 * last['wait_seconds']:.1f} ms",
        ]


OPTIONS = {"--size": number(64, "voxels per side of a universe"), "--steps": number(20, STEPS)}

if __name__ == "__main__":
    Record("store", measure, page, OPTIONS).take()
