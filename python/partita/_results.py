"""Results of verbs: the JSON of the command line as objects with attributes."""

import html
from typing import Any, Dict, Iterator, List, Optional

from ._partita import RequestError


class Result:
    """A result of a verb. Attributes are the keys of the JSON of the command line; times are in seconds, sizes in bytes."""

    def __init__(self, values: Dict[str, Any]):
        self.__dict__["_values"] = values

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"there is no `{name}`; there are {', '.join(values)}")
        return wrapped(values[name])

    def __dir__(self) -> List[str]:
        return [*super().__dir__(), *self._values]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Result) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        short = (f"{key}={short_text(value)}" for key, value in self._values.items())
        return f"{type(self).__name__}({', '.join(short)})"

    def to_dict(self) -> Dict[str, Any]:
        """The values as a dictionary, as the command line prints them with ``--json``."""
        return self._values

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th style='text-align:left'>{html.escape(key)}</th><td>{html.escape(short_text(value))}</td></tr>"
            for key, value in self._values.items()
        )
        return f"<table>{''.join(rows)}</table>"


def wrapped(value: Any) -> Any:
    """A value of JSON with attributes."""
    if isinstance(value, dict):
        return Result(value)
    if isinstance(value, list):
        return [wrapped(one) for one in value]
    return value


def short_text(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return f"{{{len(value)} values}}"
    if isinstance(value, list) and len(value) > 4:
        return f"[{len(value)} values]"
    return str(value)


class Training(Result):
    """A finished training: ``epochs``, ``curve``, ``samples_per_second``, ``files``, ``warnings`` and more.

    ``output`` is the folder of weights and results, ``run_file`` a run file that repeats the training.
    """

    def __init__(self, values: Dict[str, Any], output: str, run_file: Optional[str], model: Any, keep: Any = None):
        super().__init__(values)
        self.__dict__.update(output=output, run_file=run_file, network=model, _keep=keep)

    @property
    def loss(self) -> float:
        """Mean training loss of the last epoch."""
        return self._values["epochs"][-1]["training_loss"]

    @property
    def validation_loss(self) -> Optional[float]:
        """Loss of the last validation, if there was one."""
        validation = self._values["epochs"][-1]["validation"]
        return validation and validation["loss"]

    def plot(self, axes: Any = None) -> Any:
        """Draws the loss of steps and of validations over epochs. Needs matplotlib; returns the axes."""
        axes = axes or new_axes()
        curve, epochs = self._values["curve"], self._values["epochs"]
        steps = max(self._values["steps"] / max(len(epochs), 1), 1)
        axes.plot([point["step"] / steps for point in curve], [point["loss"] for point in curve], label="training")
        seen = [(one["epoch"], one["validation"]["loss"]) for one in epochs if one["validation"]]
        if seen:
            axes.plot(*zip(*seen), "o-", label="validation")
        axes.set(xlabel="epoch", ylabel="loss", title=self._values["model"])
        axes.legend()
        return axes


class Prediction(Result):
    """A prediction of a step: ``iteration_seconds``, ``samples_per_second``, ``memory_bytes_max``, ``breakdown`` and more."""

    def plot(self, axes: Any = None) -> Any:
        """Draws what the step spends its time on, in milliseconds. Needs matplotlib; returns the axes."""
        axes = axes or new_axes()
        parts = {key: 1e3 * value for key, value in self._values["breakdown"].items() if isinstance(value, (int, float)) and value}
        axes.barh([key.replace("_", " ") for key in parts], list(parts.values()))
        axes.invert_yaxis()
        axes.set(xlabel="ms on the critical path", title=f"{1e3 * self._values['iteration_seconds']:.2f} ms a step")
        return axes


class Plan:
    """Strategies of a training, best first, then the refused ones with their ``reason``."""

    def __init__(self, candidates: List[Dict[str, Any]]):
        self.candidates = [Prediction(one) for one in candidates]

    @property
    def best(self) -> Prediction:
        """The fastest strategy that fits."""
        if not self.fitting:
            reason = self.candidates[0]._values["reason"] if self.candidates else "none was found"
            raise RequestError(f"no strategy fits: {reason}\nhelp: more ranks, a smaller batch, or a larger `memory`")
        return self.fitting[0]

    @property
    def fitting(self) -> List[Prediction]:
        """Strategies that are not refused, best first."""
        return [one for one in self.candidates if "reason" not in one._values]

    def __len__(self) -> int:
        return len(self.candidates)

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.candidates)

    def __getitem__(self, index: int) -> Prediction:
        return self.candidates[index]

    def to_dict(self) -> List[Dict[str, Any]]:
        """The strategies as dictionaries, as the command line prints them with ``--json``."""
        return [one.to_dict() for one in self.candidates]

    def _rows(self) -> List[List[str]]:
        return [
            [
                f"{1e3 * one.iteration_seconds:.2f} ms",
                f"{one.samples_per_second:.2f}",
                f"{one.memory_bytes_max / 2**30:.2f} GiB",
                "*" if one.front else "",
                one.strategy,
            ]
            for one in self.fitting
        ]

    def __repr__(self) -> str:
        head = ["iteration", "samples/s", "memory", "front", "strategy"]
        rows = [head, *self._rows()[:10]]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("iteration", "samples/s", "memory", "front", "strategy"))
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self._rows()[:20])
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def plot(self, axes: Any = None) -> Any:
        """Draws time against memory of each strategy that fits, with the front. Needs matplotlib; returns the axes."""
        axes = axes or new_axes()
        for is_front, marker in ((False, "."), (True, "o")):
            seen = [one for one in self.fitting if bool(one.front) == is_front]
            memory = [one.memory_bytes_max / 2**30 for one in seen]
            axes.plot(memory, [1e3 * one.iteration_seconds for one in seen], marker, label="front" if is_front else "others")
        axes.annotate(self.best.strategy, (self.best.memory_bytes_max / 2**30, 1e3 * self.best.iteration_seconds))
        axes.set(xlabel="memory of a rank (GiB)", ylabel="step (ms)", yscale="log")
        axes.legend()
        return axes


def new_axes() -> Any:
    """New axes of matplotlib."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install matplotlib") from error
    return pyplot.subplots()[1]
