"""Compares what ONNX Runtime computes of networks that Partita exported with what PyTorch computes of the modules.

Run: python3 record_onnxruntime.py PARTITA; the binary. The small modules of fixtures/imported are imported from `.pt2`, their weights
exported for `load_state_dict(strict=True)`, and both as ONNX, which runs in single precision.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, numpy_helper
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "fixtures/imported"))
import make  # noqa: E402


def single(path):
    """The model in single precision: ONNX Runtime lacks kernels in double."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    constants = [attribute.t for node in model.graph.node for attribute in node.attribute if attribute.type == attribute.TENSOR]
    for tensor in [*model.graph.initializer, *constants]:
        if tensor.data_type == TensorProto.DOUBLE:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return onnxruntime.InferenceSession(model.SerializeToString())


def compare(partita, folder, name, fixture):
    def run(*arguments):
        subprocess.run([partita, *map(str, arguments)], check=True, capture_output=True, cwd=folder)

    weights, back, exported = (folder / f"{name}{end}" for end in (".safetensors", ".back.safetensors", ".onnx"))
    run("import", fixture, "--weights", weights)
    run("weights", "export", weights, "--like", fixture, "--out", back)
    run("weights", "export", weights, "--model", fixture, "--onnx", exported)
    module, shape = make.SMALL[name]
    module = module().double()
    module.load_state_dict(load_file(back), strict=True)
    module = module.eval()
    x = torch.randn(shape)
    inputs = (x,) if name != "tabular" else (x, torch.randn(shape[0], module.features))
    with torch.no_grad():
        # Masks are made in double precision.
        expected = module.double()(*(one.double() for one in inputs)).float().numpy()
    session = single(exported)
    found = session.run(None, {to.name: one.numpy() for to, one in zip(session.get_inputs(), inputs)})[0]
    far = np.abs(found.reshape(expected.shape) - expected).max() / np.abs(expected).max()
    print(f"{name}: {list(found.shape)} for {list(expected.shape)}, off by {far:.1e} of the largest output")


def main():
    torch.manual_seed(7)
    for name in make.SMALL:
        with tempfile.TemporaryDirectory() as folder:
            try:
                compare(sys.argv[1], Path(folder), name, ROOT / "fixtures/imported" / f"{name}.pt2")
            except Exception as error:
                shown = getattr(error, "stderr", None)
                print(f"{name}: {shown.decode() if shown else error}")


if __name__ == "__main__":
    main()
