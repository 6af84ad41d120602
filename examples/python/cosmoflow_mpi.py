"""CosmoFlow under MPI: `mpirun -n 2 python cosmoflow_mpi.py`. The same script runs alone, with two threads."""

import sys

import numpy
import partita


def main():
    # Each rank makes the same universes; of large ones each would map the same file.
    random = numpy.random.default_rng(1)
    contrast = random.uniform(0.5, 2, 12)
    counts = random.poisson(2 * contrast[:, None, None, None, None], (12, 1, 32, 32, 32)).astype("int16")
    data = partita.Data((counts[:8], contrast[:8]), (counts[8:], contrast[8:]), targets=["contrast"])

    trained = partita.train(
        partita.Model(SMALL),  # or "cosmoflow@32" of the zoo, which has four targets
        data,
        batch=4,
        epochs=2,
        ranks=2,
        strategy="depth=2",
        transform="log1p",
        schedule={"learning_rate": 1e-3},
        output=sys.argv[1] if len(sys.argv) > 1 else None,
    )
    if trained is not None:  # Rank 0 alone has the result.
        print(f"loss {trained.loss:.5f}, validation {trained.validation_loss:.5f}, {trained.samples_per_second:.1f} samples/s")


#: CosmoFlow with fewer layers and one target.
SMALL = """\
model small-cosmoflow
input x channels=1 extent=32x32x32
conv1 = conv x filters=8 kernel=3 pad=1 bias=true
a1 = leaky_relu conv1 slope=0.3
pool1 = max_pool a1 kernel=2 stride=2
conv2 = conv pool1 filters=16 kernel=3 pad=1 bias=true
a2 = leaky_relu conv2 slope=0.3
pool2 = max_pool a2 kernel=2 stride=2
f = flatten pool2
fc = linear f features=1 bias=true
loss = mse fc
"""


if __name__ == "__main__":
    main()
