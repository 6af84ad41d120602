"""Times training steps of a model in JAX on host devices, its tensors split in space or by samples.

    peer_jax.py MODEL.txt --devices 2 --batch 1 --split space

MODEL.txt is what `partita inspect MODEL --text` prints. The step is one jitted function of sharded
arrays; XLA's partitioner finds the halo exchanges and the sums. In space the first spatial dim of the
input is split, and of every further tensor with at least as many planes as devices; by samples, the
first dim of all. Tensors are (N, spatial..., C), which suits XLA's CPU kernels best. Batch norm takes
the statistics of the whole batch. Adam, float32; the batch is random and always the same. A step ends
when its loss and all updated parameters are there. Driven as peer.py says.
"""

import math
import os
import sys
import time
from argparse import Namespace

from peer import at_least_one, guarded, parser, serve, steps
from model_text import parse

LETTERS = {2: "HW", 3: "DHW"}


def arguments() -> Namespace:
    options = parser(__doc__)
    options.add_argument("--devices", type=at_least_one, default=2)
    options.add_argument("--split", choices=("space", "samples"), default="space")
    return options.parse_args()


# The number of devices is fixed when JAX is loaded.
OPTIONS = arguments()
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={OPTIONS.devices}"
os.environ["JAX_PLATFORMS"] = "cpu"
try:
    import jax
except ImportError:
    sys.exit("peer_jax.py needs JAX, which this Python lacks: pip install jax")
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Network:
    """The graph of a text as functions of its parameters."""

    def __init__(self, nodes, extent, sharding):
        self.nodes, self.rank, self.sharding = nodes, len(extent), sharding
        self.input = (OPTIONS.batch, *extent, int(nodes[0].keys["channels"]))

    def initial(self, key):
        """Parameters by node, and the shape of what the loss reads."""
        parameters, shapes = {}, {self.nodes[0].name: self.input}
        for index, node in enumerate(self.nodes[1:-1]):
            x = shapes[node.inputs[0]]
            parameters[node.name] = self.drawn(node, x, jax.random.fold_in(key, index))
            inputs = [jax.ShapeDtypeStruct(shapes[name], jnp.float32) for name in node.inputs]
            y = jax.eval_shape(lambda p, *xs: self.compute(node, p, xs), parameters[node.name], *inputs)
            shapes[node.name] = y.shape
        return parameters, shapes[self.nodes[-1].inputs[0]]

    def drawn(self, node, x, key):
        keys, channels = node.keys, x[-1]
        match node.operation:
            case "conv" | "conv_transpose":
                kernel, filters = node.numbers("kernel", self.rank), int(keys["filters"])
                shape = (*kernel, channels, filters)
            case "linear":
                shape = (channels, int(keys["features"]))
            case "batch_norm":
                return {"gamma": jnp.ones(channels), "beta": jnp.zeros(channels)}
            case _:
                return {}
        weight = jax.random.normal(key, shape) * (2 / math.prod(shape[:-1])) ** 0.5
        bias = {"bias": jnp.zeros(shape[-1])} if node.has("bias") else {}
        return {"weight": weight} | bias

    def loss(self, parameters, x, target, key):
        tensors = {self.nodes[0].name: x}
        for index, node in enumerate(self.nodes[1:-1]):
            inputs = [tensors[name] for name in node.inputs]
            own = jax.random.fold_in(key, index) if node.operation == "dropout" else None
            y = self.compute(node, parameters[node.name], inputs, own)
            tensors[node.name] = lax.with_sharding_constraint(y, self.sharding(y.shape))
        y = tensors[self.nodes[-1].inputs[0]]
        if self.nodes[-1].operation == "mse":
            return jnp.mean((y - target) ** 2)
        chosen = jnp.take_along_axis(y, target[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(y, axis=-1) - chosen)

    def compute(self, node, parameters, inputs, key=None):
        x, keys = inputs[0], node.keys
        match node.operation:
            case "conv" | "conv_transpose":
                y = self.convolve(node, x, parameters["weight"])
                return y + parameters["bias"] if "bias" in parameters else y
            case "max_pool":
                return self.pool(node, x, -jnp.inf, lax.max)
            case "average_pool":
                assert node.has("count_padding"), node.name
                return self.pool(node, x, 0.0, lax.add) / math.prod(node.numbers("kernel", self.rank))
            case "batch_norm":
                dims = tuple(range(x.ndim - 1))
                mean = jnp.mean(x, dims)
                variance = jnp.mean(x**2, dims) - mean**2
                factor = parameters["gamma"] * lax.rsqrt(variance + float(keys["epsilon"]))
                return x * factor + (parameters["beta"] - mean * factor)
            case "relu":
                return jnp.maximum(x, 0)
            case "leaky_relu":
                return jnp.where(x > 0, x, float(keys["slope"]) * x)
            case "linear":
                y = x @ parameters["weight"]
                return y + parameters["bias"] if "bias" in parameters else y
            case "dropout":
                rate = float(keys["rate"])
                if key is None:
                    return x
                return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)
            case "flatten":
                return x.reshape(x.shape[0], -1)
            case "add":
                return x + inputs[1]
            case "concat":
                return jnp.concatenate(inputs, axis=-1)
        sys.exit(f"peer_jax.py does not know the operation `{node.operation}` of `{node.name}`")

    def convolve(self, node, x, weight):
        if "dilation" in node.keys or "groups" in node.keys:
            sys.exit(f"peer_jax.py knows only plain windows; `{node.name}` has another")
        stride, pads = node.numbers("stride", self.rank, "1"), node.pairs("pad", self.rank, "0")
        letters = LETTERS[self.rank]
        orders = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
        if node.operation == "conv":
            return lax.conv_general_dilated(x, weight, stride, pads, dimension_numbers=orders)
        # The gradient of a convolution: what a window reaches over the border is cut off.
        kernel = node.numbers("kernel", self.rank)
        pads = [(k - 1 - low, k - 1 - high) for k, (low, high) in zip(kernel, pads)]
        return lax.conv_transpose(x, weight, stride, pads, dimension_numbers=orders)

    def pool(self, node, x, start, combine):
        window = (1, *node.numbers("kernel", self.rank), 1)
        stride = (1, *node.numbers("stride", self.rank), 1)
        pads = [(0, 0), *node.pairs("pad", self.rank, "0"), (0, 0)]
        return lax.reduce_window(x, start, combine, window, stride, pads)


def shardings(mesh):
    """Gives the sharding of an activation by its shape."""

    def sharding(shape):
        if OPTIONS.split == "samples":
            return NamedSharding(mesh, PartitionSpec("part"))
        if len(shape) > 2 and shape[1] >= OPTIONS.devices:
            return NamedSharding(mesh, PartitionSpec(None, "part"))
        return NamedSharding(mesh, PartitionSpec())

    return sharding


def adam(parameters, gradients, state, rate=1e-4, beta1=0.9, beta2=0.999, epsilon=1e-8):
    step, first, second = state
    step = step + 1
    update = jax.tree.map
    first = update(lambda m, g: beta1 * m + (1 - beta1) * g, first, gradients)
    second = update(lambda v, g: beta2 * v + (1 - beta2) * g * g, second, gradients)
    scale1, scale2 = 1 / (1 - beta1**step), 1 / (1 - beta2**step)

    def moved(p, m, v):
        return p - rate * (m * scale1) / (jnp.sqrt(v * scale2) + epsilon)

    return update(moved, parameters, first, second), (step, first, second)


class Trainer:
    """The compiled step with its sharded state."""

    def __init__(self):
        with open(OPTIONS.model, encoding="utf-8") as file:
            nodes, extent = parse(file.read())
        mesh = Mesh(jax.devices()[: OPTIONS.devices], ("part",))
        sharding = shardings(mesh)
        everywhere = NamedSharding(mesh, PartitionSpec())
        network = Network(nodes, extent, sharding)
        key = jax.random.key(1)
        parameters, output = network.initial(key)
        self.count = sum(p.size for p in jax.tree.leaves(parameters))
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        # No two of them may be one buffer, as the step gives them all back.
        state = (jnp.float32(0), zeros, jax.tree.map(jnp.copy, zeros))
        self.parameters, self.state = jax.device_put((parameters, state), everywhere)
        x = jax.random.normal(key, network.input)
        if nodes[-1].operation == "mse":
            target = jax.random.uniform(key, output)
        else:
            target = jax.random.randint(key, output[:-1], 0, output[-1])
        self.x = jax.device_put(x, sharding(x.shape))
        self.target = jax.device_put(target, sharding(target.shape))
        self.key, self.number = key, 0

        def step(parameters, state, x, target, key):
            loss, gradients = jax.value_and_grad(network.loss)(parameters, x, target, key)
            return *adam(parameters, gradients, state), loss

        together = (everywhere, everywhere, everywhere)
        jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=together)
        arguments = (self.parameters, self.state, self.x, self.target, key)
        self.compiled = jitted.lower(*arguments).compile()

    def collectives(self):
        """What the partitioner put in, by kind."""
        text = self.compiled.as_text()
        kinds = ("collective-permute", "all-reduce", "all-gather", "all-to-all", "reduce-scatter")
        return {kind: text.count(f" {kind}(") + text.count(f" {kind}-start(") for kind in kinds}

    def step(self):
        self.number += 1
        key = jax.random.fold_in(self.key, self.number)
        jax.block_until_ready(key)
        start = time.perf_counter()
        self.parameters, self.state, loss = self.compiled(
            self.parameters, self.state, self.x, self.target, key
        )
        jax.block_until_ready((self.parameters, self.state, loss))
        return time.perf_counter() - start, loss.item()

    def steps(self, count):
        done = [self.step() for _ in range(count)]
        return [seconds for seconds, _ in done], done[-1][1]


def main():
    trainer = Trainer()
    facts = {
        "peer": "jax",
        "version": jax.__version__,
        "parameters": trainer.count,
        "batch": OPTIONS.batch,
        "devices": OPTIONS.devices,
        "split": OPTIONS.split,
        "collectives": trainer.collectives(),
    }
    serve(facts, steps(trainer.steps))


if __name__ == "__main__":
    guarded(main)
