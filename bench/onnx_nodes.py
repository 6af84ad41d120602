"""Makes a folder of the node tests of the package `onnx`, for `PARTITA_IMPORTED=FOLDER cargo test networks_of_a_folder`.

Run: python3 onnx_nodes.py FOLDER. Each NAME.onnx is a node test whose inputs but the first are initializers, in double precision;
NAME.safetensors has its input x, a random target, and the loss, the mean squared error of what the reference evaluator of `onnx` computes.
Tests of strings, sequences, several outputs or other types than floating point are left out, and so are expanded functions.
"""

import math
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.reference import ReferenceEvaluator, op_run
from onnx.reference.op_run import OpRun
from safetensors.numpy import save_file

# Files hold attributes in single precision: epsilon 0.01 is 0.009999999776. What is meant, and what exporters rounded, is the
# shortest decimal that rounds to it. That is what the importer takes, so that a network of PyTorch has PyTorch's numbers; the reference is
# given the same.
CONVERSIONS = op_run._attribute_conversion_function


def conversion(attribute_type):
    if attribute_type == onnx.AttributeProto.FLOAT:
        return lambda attribute: float(str(np.float32(attribute.f)))
    return CONVERSIONS(attribute_type)


op_run._attribute_conversion_function = conversion


class Gelu(OpRun):
    """In double precision: the reference computes `erf`, and holds the constants of the tanh, in single."""

    def _run(self, x, approximate=None):
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return (0.5 * x * (1 + np.tanh(inner)),)
        return (0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),)


class HardSwish(OpRun):
    """In double precision: the reference holds a sixth in single."""

    def _run(self, x):
        return (x * np.clip(x / 6 + 0.5, 0, 1),)


def double(array):
    return array.astype(np.float64) if array.dtype == np.float32 else array


def convert(test, folder):
    model = test.model
    graph = model.graph
    inputs, outputs = test.data_sets[0]
    if not inputs or getattr(inputs[0], "dtype", None) != np.float32 or len(graph.output) != 1:
        return False
    expected = outputs[0]
    if getattr(expected, "dtype", None) != np.float32 or expected.size == 0:
        return False
    names = [info.name for info in graph.input]
    for name, array in list(zip(names, inputs))[1:]:
        graph.initializer.append(numpy_helper.from_array(double(array), name))
    del graph.input[1:]
    for info in [*graph.input, *graph.output, *graph.value_info]:
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in graph.node:
        # The type in which statistics are computed becomes the tensors' own.
        if node.op_type in ("GroupNormalization", "LayerNormalization"):
            kept = [attribute for attribute in node.attribute if attribute.name != "stash_type"]
            del node.attribute[:]
            node.attribute.extend([*kept, onnx.helper.make_attribute("stash_type", int(TensorProto.DOUBLE))])
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
                attribute.t.CopyFrom(numpy_helper.from_array(double(numpy_helper.to_array(attribute.t))))
    x = double(inputs[0])
    output = ReferenceEvaluator(model, new_ops=[Gelu, HardSwish]).run(None, {names[0]: x})[0]
    np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-5)
    target = np.random.default_rng(7).standard_normal(output.shape)
    loss = np.array([((output - target) ** 2).mean()])
    name = test.name.removeprefix("test_")
    onnx.save(model, folder / f"{name}.onnx")
    save_file({"x": np.ascontiguousarray(x), "target": target, "loss": loss}, folder / f"{name}.safetensors")
    return True


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    tests = sorted(collect_testcases(), key=lambda test: test.name)
    made, others = 0, {}
    for test in tests:
        if "_expanded" in test.name or "training_dropout" in test.name or not test.data_sets:
            continue
        try:
            made += convert(test, folder)
        except Exception as error:
            others[test.name] = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    print(f"{made} of {len(tests)} tests")
    for name, reason in others.items():
        print(f"{name}: left out: {reason}")


if __name__ == "__main__":
    main()
