"""The verbs: a function each, with the names of the command line and of the run file as keywords."""

import atexit
import json
import os
import tempfile
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _partita
from ._data import Data, data_of
from ._model import Model, argument
from ._progress import Listener, listener
from ._results import Plan, Prediction, Result, Training, wrapped

Path = Union[str, "os.PathLike[str]"]
AnyModel = Union[str, "os.PathLike[str]", Model]
atexit.register(_partita.finalize)


def _words(options: Dict[str, Any]) -> List[str]:
    """Keywords as options of the command line. None and False are left out."""
    words = []
    for key, value in options.items():
        name = "--" + key.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(name)
        elif isinstance(value, (list, tuple)):
            words.append(f"{name}={','.join(map(str, value))}")
        else:
            words.append(f"{name}={os.fspath(value) if isinstance(value, os.PathLike) else value}")
    return words


def _json(verb: Sequence[str], options: Dict[str, Any], progress: Union[bool, Listener] = False) -> Any:
    """What a verb prints as JSON; none on ranks other than 0."""
    printed = _partita.call([*verb, "--json", *_words(options)], listener(progress))
    return json.loads(printed) if printed else None


def plan(
    model: AnyModel,
    *,
    ranks: int,
    batch: int,
    machine: str = "here",
    software: str = "partita",
    optimizer: Optional[str] = None,
    ema: Optional[float] = None,
    samples: Optional[str] = None,
    precision: Optional[str] = None,
    batch_norm: Optional[str] = None,
    memory: Optional[str] = None,
    budget: Optional[str] = None,
    explain: bool = False,
    report: Optional[Path] = None,
    progress: Union[bool, Listener] = True,
    **more: Any,
) -> Plan:
    """Ranks strategies for a training on a machine.

    model: a name of the zoo like ``"cosmoflow@512"``, a file, or a ``Model``. ranks: number of ranks. batch: samples per step
    over all ranks. machine: name or path of a machine file; ``"here"`` measures this machine. memory: limit of a rank, like
    ``"16GiB"``. budget: time of the search, like ``"10s"``. report: HTML file to write. more: other options of
    ``partita plan``, like ``no_io=True``.

    Returns a ``Plan``: ``best.strategy``, ``best.iteration_seconds`` (seconds), ``best.memory_bytes_max`` (bytes), ``plot()``.
    """
    options = dict(ranks=ranks, batch=batch, machine=machine, software=software, optimizer=optimizer, ema=ema, samples=samples)
    options |= dict(precision=precision, batch_norm=batch_norm, memory=memory, budget=budget, explain=explain, report=report)
    return Plan(_json(["plan", argument(model)], {**options, **more}, progress))


def predict(
    model: AnyModel,
    *,
    ranks: int,
    batch: int,
    strategy: str,
    machine: str = "here",
    software: str = "partita",
    optimizer: Optional[str] = None,
    samples: Optional[str] = None,
    precision: Optional[str] = None,
    memory: Optional[str] = None,
    explain: bool = False,
    progress: Union[bool, Listener] = True,
    **more: Any,
) -> Prediction:
    """Predicts time and memory of a training step on a machine.

    strategy: like ``"data=4,depth=2"``. Others as of ``plan``. more: other options of ``partita predict``.

    Returns a ``Prediction``: ``iteration_seconds`` (seconds), ``samples_per_second``, ``memory_bytes_max`` (bytes of the largest
    rank), ``breakdown`` (seconds on the critical path), ``bottleneck``, ``plot()``.
    """
    options = dict(ranks=ranks, batch=batch, strategy=strategy, machine=machine, software=software, optimizer=optimizer)
    options |= dict(samples=samples, precision=precision, memory=memory, explain=explain)
    return Prediction(_json(["predict", argument(model)], {**options, **more}, progress))


def tune(model: AnyModel, *, progress: Union[bool, Listener] = True, **options: Any) -> Result:
    """Measures implementations and micro-batches of convolutions on this machine, for later runs to use.

    options: those of ``partita tune``, like ``ranks=2, batch=4, strategy="depth=2", workspace="64MiB"``.
    """
    return Result(_json(["tune", argument(model)], options, progress))


def calibrate(*, progress: Union[bool, Listener] = True, **options: Any) -> Optional[Result]:
    """Measures this machine and writes a machine file, which ``machine=`` then names.

    options: those of ``partita calibrate``, like ``name="node", output="node.toml", ranks=2``. None on ranks other than 0.
    """
    found = _json(["calibrate"], options, progress)
    return found and Result(found)


def models() -> List[Result]:
    """The models of the zoo with parameters, flops and memory (bytes)."""
    return wrapped(_json(["models"], {}))


def inspect(model: AnyModel) -> Result:
    """Layers, shapes, parameters, flops and bytes of a model."""
    return Result(_json(["inspect", argument(model)], {}))


def doctor() -> Result:
    """Processor, memory, MPI and libraries of this machine."""
    return Result(_json(["doctor"], {}))


def _dataset(words: List[str], options: Dict[str, Any], progress: Union[bool, Listener]) -> Result:
    _partita.call(["data", *words, *_words(options)], listener(progress))
    return Result(_json(["data", "inspect", os.fspath(options["out"])], {}))


def convert(*sources: Path, out: Path, progress: Union[bool, Listener] = True, **options: Any) -> Result:
    """Makes a dataset of HDF5, NPY, NPZ, Zarr, NIfTI, PNG, JPEG or TFRecord files.

    out: a folder, new or empty. options: those of ``partita data convert``, like ``split="0.8,0.1,0.1"``.
    """
    return _dataset(["convert", *map(os.fspath, sources)], dict(out=out, **options), progress)


def make(kind: str, *, out: Path, progress: Union[bool, Listener] = True, **options: Any) -> Result:
    """Makes a synthetic dataset: ``"cosmology"``, ``"segmentation"``, ``"shapes"`` or ``"digits"``.

    out: a folder, new or empty. options: those of ``partita data KIND``, like ``universes=20, grid=32, seed=1``.
    """
    return _dataset([kind], dict(out=out, **options), progress)


def export_weights(source: Union[Path, Training], out: Path, **options: Any) -> Result:
    """Writes trained weights in PyTorch's names and axis order, as a safetensors file.

    source: a training, a run file, a weight file, an output folder or a checkpoint. options: those of ``partita weights export``.
    """
    if isinstance(source, Training):
        options.setdefault("model", argument(source.network))
        source = source.output
    return Result(_json(["weights", "export", os.fspath(source)], dict(out=out, **options)))


def train(
    model: Optional[AnyModel] = None,
    data: Any = None,
    *,
    batch: Optional[int] = None,
    epochs: Optional[int] = None,
    run: Optional[Path] = None,
    output: Optional[Path] = None,
    on_epoch: Optional[Callable[[Result], Optional[bool]]] = None,
    resume: Union[bool, str] = False,
    predict: bool = False,
    progress: Union[bool, Listener] = True,
    **options: Any,
) -> Optional[Training]:
    """Trains a model on samples, or by a run file.

    model: a name of the zoo, a file, or a ``Model``, with its weights to start from. data: the path of a dataset, ``Data``,
    ``(x, y)`` of arrays, or an object with ``__len__`` and ``__getitem__``; a dictionary for several splits. batch: samples of a
    step over all ranks. epochs: passes over the samples.
    run: a run file, in place of all these. output: folder of weights, results and checkpoints (default: a temporary one that
    lives as long as the result, without checkpoints).
    on_epoch: called with the results of each epoch (``epoch``, ``training_loss``, ``validation.loss``, ...). ``False`` ends the
    training after that epoch; an exception, too, and is raised when weights are written.
    resume: ``True`` from the newest checkpoint of ``output``, ``"auto"`` if there is one, or a path. predict: measure kernels
    before, and predict times.
    options: keys of the run file, like ``ranks=2, strategy="depth=2", loss="softmax_cross_entropy",
    schedule={"learning_rate": 1e-3}, optimizer="adamw", freeze=["stem*"], checkpoint={"every_epochs": 1}``.

    Returns a ``Training``; None on ranks of MPI other than 0. Ctrl-C ends it after the current step with a checkpoint, and
    raises ``KeyboardInterrupt`` with its path.
    """
    told = None if on_epoch is None else lambda text: on_epoch(Result(json.loads(text)))
    request: Dict[str, str] = {}
    if resume:
        request["resume"] = "newest" if resume is True else os.fspath(resume)
    if predict:
        request["predict"] = "yes"
    if run is not None:
        given = [key for key, value in dict(model=model, data=data, batch=batch, epochs=epochs, output=output).items() if value is not None]
        if given or options:
            raise _partita.RequestError(f"`{[*given, *options][0]}` is said beside `run`\nhelp: change it in the run file, or leave `run` out")
        found = _partita.train({**request, "run": os.fspath(run)}, None, listener(progress), told)
        if found is None:
            return None
        values = json.loads(found)
        return Training(values, os.path.dirname(values["files"]["weights"]), os.fspath(run), values["model"])
    if model is None or data is None:
        raise _partita.RequestError("a training needs a model and data\nhelp: `train(model, data, batch=..., epochs=...)`, or `run=` with a run file")
    keep = None
    if output is None:
        keep = tempfile.TemporaryDirectory(prefix="partita-")
        output = os.path.join(keep.name, "output")
        options.setdefault("checkpoint", {"keep": 0})
    options = _of_model(model, dict(options))
    if isinstance(options.get("optimizer"), str):
        options["optimizer"] = {"kind": options["optimizer"]}
    samples = data_of(data)
    keys = dict(model=argument(model), data=samples, output=os.fspath(output), batch=batch, epochs=epochs, **options)
    source = None
    if isinstance(samples, Data):
        source, keys["data"] = samples, samples.name
    store = {key: keys.pop(key) for key in ("store", "preload", "spill", "store_memory") if key in keys}
    if store:
        keys["data"] = {"path": keys["data"], **store}
    request["text"] = _toml(keys)
    if isinstance(model, Model):
        request["model"] = model.text
    found = _partita.train(request, source, listener(progress), told)
    if found is None:
        return None
    return Training(json.loads(found), os.fspath(output), _write_run(keys, model, os.fspath(output)), model, keep)


def _of_model(model: AnyModel, options: Dict[str, Any]) -> Dict[str, Any]:
    """Options with what a ``Model`` brings: weights to start from, frozen parameters."""
    if not isinstance(model, Model):
        return options
    if model.assumed_loss and "loss" not in options:
        nearest = model.text.split()[model.text.split().index("loss") + 2 :][:1] if "loss" in model.text.split() else []
        raise _partita.RequestError(
            f"{model.name} has no loss, as networks of PyTorch have none\n"
            f"help: say `loss=`, like `loss=\"{''.join(nearest) or 'softmax_cross_entropy'}\"`"
        )
    if model.weights:
        options.setdefault("weights", model.weights)
    if model.frozen:
        options.setdefault("freeze", model.frozen)
    return options


def _write_run(keys: Dict[str, Any], model: AnyModel, output: str) -> str:
    """A run file in the output folder that repeats the training, and its model where that is a text."""
    keys = dict(keys)
    if isinstance(model, Model):
        keys["model"] = os.path.join(output, "network.model")
        model.save(keys["model"])
    path = os.path.join(output, "run.toml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_toml(keys))
    return path


def _toml(keys: Dict[str, Any]) -> str:
    """Keywords as a run file."""
    return "".join(f"{key} = {_value(value, key)}\n" for key, value in keys.items() if value is not None)


def _value(value: Any, key: str) -> str:
    """A value in TOML."""
    if hasattr(value, "item") and not getattr(value, "shape", ()):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value(one, key) for one in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(name)} = {_value(one, key)}' for name, one in value.items() if one is not None)}}}"
    raise _partita.RequestError(f"`{key}` is {type(value).__name__}\nhelp: a run file has texts, numbers, true or false, lists and tables")


def _forward(verb: str, run: Union[Path, Training], data: Any, split: Optional[str], options: Dict[str, Any], progress: Any) -> Any:
    file = run.run_file if isinstance(run, Training) else os.fspath(run)
    if data is not None:
        data = data_of(data, split or "test")
    words = [verb, file, "--json"]
    if isinstance(data, Data):
        held = [one for one, count in zip(("train", "validation", "test"), data.counts) if count]
        split = split or ("validation" if "validation" in held else held[-1])
        printed = _partita.forward([*words, *_words(dict(split=split, **options))], data, listener(progress))
    else:
        printed = _partita.call([*words, *_words(dict(data=data, split=split, **options))], listener(progress))
    return json.loads(printed) if printed else None


def evaluate(
    run: Union[Path, Training],
    data: Any = None,
    *,
    split: Optional[str] = None,
    weights: Union[Path, Sequence[Path], None] = None,
    best: bool = False,
    ranks: Optional[int] = None,
    strategy: Optional[str] = None,
    batch: Optional[int] = None,
    per_sample: bool = False,
    progress: Union[bool, Listener] = True,
    **more: Any,
) -> Optional[Result]:
    """Evaluates trained weights: loss and metrics on a split.

    run: a training, or its run file. data: as of ``train`` (default: that of the training, if it is a path). split: ``"train"``,
    ``"validation"`` or ``"test"``. weights: a weight file, or a list whose outputs are averaged (default: those of the training).
    best: those of its best epoch. per_sample: loss and metrics of each sample, too. more: other options of
    ``partita evaluate``, such as ``mirror=["height", "width"]``.
    """
    options = dict(weights=weights, best=best, ranks=ranks, strategy=strategy, batch=batch, per_sample=per_sample, **more)
    found = _forward("evaluate", run, data, split, options, progress)
    return found and Result(found)


def infer(
    run: Union[Path, Training],
    data: Any = None,
    *,
    out: Optional[Path] = None,
    split: Optional[str] = None,
    weights: Union[Path, Sequence[Path], None] = None,
    best: bool = False,
    output: Optional[str] = None,
    ranks: Optional[int] = None,
    strategy: Optional[str] = None,
    batch: Optional[int] = None,
    progress: Union[bool, Listener] = True,
    **more: Any,
) -> Any:
    """Predictions of trained weights.

    data: as of ``train``; targets are not needed. out: a file, ``.h5``, ``.npy`` or NIfTI (default: none, and the predictions are
    returned). output: ``"scores"``, ``"probabilities"`` or ``"classes"``. Others as of ``evaluate``; more: other options of
    ``partita infer``.

    Returns an array of numpy, (N, C) or (N, C, spatial), without ``out``; else a ``Result`` with ``file``, ``shape`` and ``names``.
    None on ranks of MPI other than 0.
    """
    options = dict(weights=weights, best=best, output=output, ranks=ranks, strategy=strategy, batch=batch, **more)
    if out is not None:
        found = _forward("infer", run, data, split, dict(out=out, **options), progress)
        return found and Result(found)
    import numpy

    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        found = _forward("infer", run, data, split, dict(out=os.path.join(folder, "predictions.npy"), **options), progress)
        return found and numpy.load(found["file"])
