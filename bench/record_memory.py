"""Records the memory of a training step beside PyTorch's, with all activations kept and with cheap ones computed again.

First what is predicted for one rank, beside the bytes of PyTorch's tensors (`peer_torch.py --memory`); nothing is trained.
Then trainings on one core of this machine, in turns: seconds of a step, and the largest memory of the process.
"""

import json
import subprocess
from statistics import median
from typing import Iterator

from page import head, quoted, table
from runner import Bench, Failure, Record, number, say
from trainings import Scene, has, model_text, peer, segmentation, shapes, toml

# One GPU of it has 64 GB.
MACHINE = "frontier"
WHOLE, SELECTIVE = "data=1", "data=1; ..: recompute=selective"
# Models with their batch.
PREDICTED = (
    ("cosmoflow@512", 1), ("unet3d@256", 1), ("unet3d@128", 1), ("scaffold@256", 1), ("scaffold@128", 1),
    ("resnet50@224", 4), ("densenet121@224", 4), ("resnet110v2@32", 16),
)
TRAINED = ((segmentation(64, 2), 1), (shapes("resnet50@224", 8), 4), (shapes("densenet121@224", 8), 4))
# Of what a rank needs, what is no tensor.
OF_LIBRARIES = ("context", "library_workspace", "records")


def beside_pytorch(bench: Bench, model: str, batch: int) -> dict:
    """Bytes of the tensors of a step in PyTorch, and of a rank here."""
    command = peer("peer_torch.py", model_text(bench, model), "--memory", "--batch", batch)
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True)
    found = {"model": model, "batch": batch, "pytorch_bytes": json.loads(done.stdout)["bytes"]}
    words = ("--ranks", 1, "--batch", batch, "--machine", MACHINE, "--no-io", "--memory", "1TiB")
    for strategy in (WHOLE, SELECTIVE):
        answer = bench.json("predict", model, *words, "--strategy", strategy)
        own = sum(count for part, count in answer["memory"].items() if part not in OF_LIBRARIES)
        found[strategy] = {"bytes": own, "seconds": answer["iteration_seconds"]}
    return found


def trained(bench: Bench, scene: Scene, batch: int) -> dict:
    """Medians over turns of the step, and the memory of the process."""
    scene.make(bench)
    turns: dict[str, list[dict]] = {WHOLE: [], SELECTIVE: []}
    for strategy in list(turns) * bench.options.rounds:
        run = {"model": scene.model, "data": scene.data, "batch": batch, "epochs": bench.options.epochs, "ranks": 1}
        run |= {"threads": 1, "strategy": strategy, "overwrite": True, "output": "out", "transform": scene.transform}
        (bench.folder / "run.toml").write_text(toml(run | {"schedule": {"learning_rate": 1e-4}}))
        bench.run("train", "run.toml", "--no-prediction")
        result = json.loads((bench.folder / "out" / "result.json").read_text())
        memory = result["memory"]
        turn = {"seconds": result["step_seconds_median"]}
        turns[strategy].append(turn | {key: memory[f"{key}_bytes"] for key in ("predicted", "measured_peak")})
        say(f"{scene.model}, `{strategy}`: {turn['seconds']:.3f} s, {gib(memory['measured_peak_bytes'])} GiB")
    middle = {
        strategy: {key: median(turn[key] for turn in all_turns) for key in all_turns[0]}
        for strategy, all_turns in turns.items()
    }
    return {"model": scene.model, "batch": batch, "turns": turns} | middle


def measure(bench: Bench) -> dict:
    if not has("torch"):
        raise Failure("there is nothing to compare with")
    predictions = []
    for model, batch in PREDICTED:
        predictions.append(beside_pytorch(bench, model, batch))
        say(f"{model}: PyTorch {gib(predictions[-1]['pytorch_bytes'])} GiB")
    return {"predicted": predictions, "trained": [trained(bench, scene, batch) for scene, batch in TRAINED]}


def gib(count: float) -> str:
    return f"{count / 2**30:.2f}"


def predicted_row(one: dict) -> list:
    whole, selective = one[WHOLE], one[SELECTIVE]
    parts = [f"{own['bytes'] / one['pytorch_bytes']:.2f}" for own in (whole, selective)]
    cells = [gib(one["pytorch_bytes"]), gib(whole["bytes"]), parts[0], gib(selective["bytes"]), parts[1]]
    return [one["model"], one["batch"], *cells, f"{selective['seconds'] / whole['seconds']:.3f}"]


def trained_rows(all_trained: list[dict]) -> Iterator[list]:
    for one in all_trained:
        for strategy in (WHOLE, SELECTIVE):
            own, whole = one[strategy], one[WHOLE]
            memory = [gib(own["predicted"]), gib(own["measured_peak"])]
            relative = [f"{own[key] / whole[key]:.3f}" for key in ("measured_peak", "seconds")]
            yield [one["model"], one["batch"], quoted(strategy), *memory, f"{own['seconds']:.3f}", *relative]


def page(record: dict, raw: str):
    yield head(record, "Memory of a training step", f"""\
All activations kept (`{WHOLE}`), and those of norms, activations and concatenations computed again (`{SELECTIVE}`), in
float32 with Adam. Raw data: `{raw}`.""")
    yield """\
## Beside PyTorch

The largest sum of bytes of the tensors of a step. PyTorch's are counted by its own tracker for fake tensors, with
activations in place, without workspaces of libraries and what the allocator rounds up. Here it is what is predicted on
Frontier, with gaps, halos and buffers for samples, without the context of the device. `part` is of PyTorch's, `time` the
predicted step beside that with all kept.

""" + table(
        "model | batch> | PyTorch, GiB> | kept, GiB> | part> | selective, GiB> | part> | time>",
        map(predicted_row, record["predicted"]),
    )
    yield """\
## Trained here

On one core, medians of turns. Memory is that of the process above what it had before, with a snapshot of weights and
optimizer for checkpoints; the last columns are beside all kept.

""" + table(
        "model | batch> | strategy | predicted, GiB> | measured, GiB> | step, s> | memory> | time>",
        trained_rows(record["trained"]),
    )


if __name__ == "__main__":
    Record("memory", measure, page, {"--epochs": number(2, "of each training")}).take()
