"""Plans, predicts and runs hybrid-parallel training of large convolutional networks.

Every verb of the command line is a function with its arguments as keywords: ``plan``, ``predict``, ``train``, ``evaluate``,
``infer``, ``tune``, ``calibrate``, ``convert``, and smaller ones. Results have attributes as the JSON of the verb has keys.
Times are in seconds, sizes in bytes. Samples are (C, D, H, W), (C, H, W) or (C, W), as in PyTorch.

A module of PyTorch comes in by ``from_torch``, and what was trained goes back by ``to_torch``.
"""

from ._data import Data
from ._model import Model
from ._partita import Error, FailureError, RequestError, __version__
from ._results import Plan, Prediction, Result, Training
from ._torch import from_torch, state_dict, to_torch
from ._verbs import (
    calibrate,
    convert,
    doctor,
    evaluate,
    export_weights,
    infer,
    inspect,
    make,
    models,
    plan,
    predict,
    train,
    tune,
)

__all__ = [
    "Data",
    "Error",
    "FailureError",
    "Model",
    "Plan",
    "Prediction",
    "RequestError",
    "Result",
    "Training",
    "__version__",
    "calibrate",
    "convert",
    "doctor",
    "evaluate",
    "export_weights",
    "from_torch",
    "infer",
    "inspect",
    "make",
    "models",
    "plan",
    "predict",
    "state_dict",
    "to_torch",
    "train",
    "tune",
]
