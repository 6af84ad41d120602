"""From a module of PyTorch to a model, and back."""

import json
import os
import struct
import tempfile
from typing import Any, Dict, Optional, Sequence, Union

from ._model import Model
from ._partita import RequestError
from ._results import Training
from ._verbs import export_weights


def from_torch(
    module: Any,
    example_inputs: Union[Any, Sequence[Any]],
    *,
    loss: Optional[str] = None,
    output: Optional[int] = None,
) -> Model:
    """A module of PyTorch as a model, with its weights.

    It is exported by ``torch.export`` in training mode, so that dropout and batch norms train; the module stays as it is.
    Layers are called as in the module. What cannot be expressed is refused, all of it at once, by operator and source line.

    example_inputs: a tensor or a tuple of tensors, (N, C, D, H, W), (N, C, H, W) or (N, C, W), whose extents are those of the model.
    loss: as in a model file, like ``"softmax_cross_entropy smoothing=0.1"``; else ``train`` needs one. output: the output that is
    trained, from 0, where the module returns several.
    """
    import torch

    inputs = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    modes = [(one, one.training) for one in module.modules()]
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        path = os.path.join(folder, f"{type(module).__name__}.pt2")
        try:
            module.train()
            torch.export.save(torch.export.export(module, inputs), path)
        finally:
            for one, mode in modes:
                one.training = mode
        return Model.read(path, loss=loss, output=output)


def state_dict(source: Union[Training, str, "os.PathLike[str]"], model: Any = None) -> Dict[str, Any]:
    """Trained weights as tensors of PyTorch, by the names of the module.

    source: a training, or anything that ``partita weights export`` takes. model: that of the weights, if ``source`` does not say it.
    """
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        path = os.path.join(folder, "weights.safetensors")
        options = {}
        if model is not None:
            from ._model import argument

            options["model"] = argument(model)
        export_weights(source, path, **options)
        return _read(path)


def _read(path: str) -> Dict[str, Any]:
    """Tensors of a safetensors file that Partita wrote."""
    import torch

    types = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16, "I64": torch.int64}
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        body = bytearray(file.read())
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        start, end = about["data_offsets"]
        dtype = types[about["dtype"]]
        flat = torch.frombuffer(body, dtype=dtype, offset=start, count=(end - start) // dtype.itemsize) if end > start else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(about["shape"]).clone()
    return tensors


def to_torch(source: Union[Training, str, "os.PathLike[str]"], module: Any, model: Any = None) -> Any:
    """Loads trained weights into a module of PyTorch, and returns it.

    All parameters and running statistics must be there, with ``strict=True``; buffers that Partita does not train, like
    ``num_batches_tracked``, stay as they are in the module.

    source, model: as of ``state_dict``.
    """
    trained = {name: tensor for name, tensor in state_dict(source, model).items() if tensor.is_floating_point()}
    own = module.state_dict()
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    statistics = ("running_mean", "running_var")
    missing = [name for name in own if name not in trained and (name in parameters or name.endswith(statistics))]
    extra = [name for name in trained if name not in own]
    if missing or extra:
        what = f"the weights have no {', '.join(missing[:4])}" if missing else f"the module has no {', '.join(extra[:4])}"
        raise RequestError(f"{what}\nhelp: `to_torch` takes the module that `from_torch` was given")
    module.load_state_dict({name: trained.get(name, value) for name, value in own.items()}, strict=True)
    return module
