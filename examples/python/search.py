"""A search of hyper-parameters that prunes poor trials, as Optuna does: see the comment below."""

import numpy
import partita

MODEL = partita.Model(
    """\
model small
input x channels=1 extent=8x8
c = conv x filters=4 kernel=3 pad=1 bias=true
a = relu c
f = flatten a
fc = linear f features=2 bias=true
loss = softmax_cross_entropy fc
"""
)


class Pruned(Exception):
    pass


def main():
    random = numpy.random.default_rng(0)
    labels = numpy.arange(64) % 2
    images = (random.random((64, 1, 8, 8)) + 0.3 * labels[:, None, None, None]).astype("float32")
    best_at = {}

    def objective(rate):
        # With Optuna: trial.report(epoch.training_loss, epoch.epoch); if trial.should_prune(): raise optuna.TrialPruned
        def on_epoch(epoch):
            if epoch.training_loss > 1.01 * best_at.setdefault(epoch.epoch, epoch.training_loss):
                raise Pruned
            best_at[epoch.epoch] = min(best_at[epoch.epoch], epoch.training_loss)

        return partita.train(
            MODEL, (images, labels), batch=16, epochs=5, schedule={"learning_rate": rate}, on_epoch=on_epoch, progress=False
        ).loss

    losses = {}
    for rate in (1e-2, 1e-3, 1e-6):
        try:
            losses[rate] = objective(rate)
        except Pruned:
            losses[rate] = None
        print(rate, losses[rate])
    assert losses[1e-6] is None, "a rate that learns nothing is pruned"
    assert losses[1e-2] is not None


if __name__ == "__main__":
    main()
