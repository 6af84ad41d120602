"""Networks as text."""

import os
import re
import tempfile
from typing import Any, List, Optional, Union

from . import _partita


class Model:
    """A network in the text form of model files, perhaps with weights.

    ``Model(text)`` is a network of its own; ``from_torch`` and ``Model.read`` give those of PyTorch and of files.

    text: the lines of a model file. weights: a safetensors file to start from, in PyTorch's names.
    """

    def __init__(self, text: str, weights: Optional[str] = None):
        self.text = text
        self.weights = weights
        #: Parameters that training leaves as they are, unless ``freeze=`` says otherwise.
        self.frozen: List[str] = []
        #: What each operator became, of an imported network.
        self.layers: List[Any] = []
        #: Whether ``train`` needs ``loss=``, as nothing names one.
        self.assumed_loss = False
        self._folder: Optional[tempfile.TemporaryDirectory] = None

    @property
    def name(self) -> str:
        """The name on the first line."""
        found = re.search(r"^\s*model\s+(\S+)", self.text, re.MULTILINE)
        return found.group(1) if found else "model"

    @classmethod
    def read(cls, path: Union[str, "os.PathLike[str]"], loss: Optional[str] = None, output: Optional[int] = None) -> "Model":
        """A network of a file: text, or a ``.pt2`` file of ``torch.export.save`` or an ``.onnx`` file with its weights.

        loss: as in a model file, like ``"softmax_cross_entropy smoothing=0.1"``. output: the output that is trained, from 0,
        where the network returns several.
        """
        path = os.fspath(path)
        if not path.endswith((".pt2", ".onnx")):
            with open(path, encoding="utf-8") as file:
                return cls(file.read())
        from ._verbs import _json

        folder = tempfile.TemporaryDirectory(prefix="partita-")
        text, weights = (os.path.join(folder.name, name) for name in ("network.model", "network.safetensors"))
        found = _json(["import", path], dict(out=text, weights=weights, loss=loss, output=output))
        with open(text, encoding="utf-8") as file:
            model = cls(file.read(), weights)
        model.frozen = found.get("frozen", [])
        model.layers = found["layers"]
        model.assumed_loss = found["assumed_loss"]
        model._folder = folder
        return model

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the text as a model file, without the weights."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.text)

    def _path(self) -> str:
        """A file of the text, which lives as long as the model."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="partita-")
        path = os.path.join(self._folder.name, f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self.name)}.model")
        self.save(path)
        return path

    def __repr__(self) -> str:
        return f"<Model {self.name}, {len(self.text.splitlines())} lines>"


def argument(model: Union[str, "os.PathLike[str]", Model]) -> str:
    """A model as an argument of the command line."""
    if isinstance(model, Model):
        return model._path()
    if isinstance(model, (str, os.PathLike)):
        return os.fspath(model)
    raise _partita.RequestError(
        f"a model is a name, a path or a partita.Model, and not {type(model).__name__}\n"
        "help: a module of PyTorch becomes a model by `partita.from_torch(module, example_inputs)`"
    )
