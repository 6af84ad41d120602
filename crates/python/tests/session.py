import importlib.util
import os
import signal
import tempfile
import threading

import partita

plan = partita.plan("cosmoflow@64", machine="dgx-a100", ranks=2, batch=2, no_io=True, progress=False)
assert plan.best.iteration_seconds > 0 and "strategy" in repr(plan) and plan._repr_html_()
step = partita.predict("cosmoflow@64", machine="dgx-a100", ranks=2, batch=2, strategy="data=2", no_io=True, progress=False)
assert step.to_dict()["ranks"] == 2 and step.breakdown._repr_html_()


def refused(call, word):
    try:
        call()
    except partita.RequestError as error:
        assert word in str(error), error
        assert isinstance(error, partita.Error)
        return
    raise AssertionError(f"{word} is not refused")


refused(lambda: partita.plan("cosmoflow@64", machine="dgx-a101", ranks=2, batch=2), "dgx-a100")
refused(lambda: partita.plan("cosmoflow@64", machine="dgx-a100", ranks=2, batch=2, no_oi=True), "--no-io")
refused(lambda: partita.train("cosmoflow@64", "no-such-folder", batch=1, epochs=1, schedule={"learning_rate": 1e-3}, output="x"), "no-such-folder")
refused(lambda: partita.train("cosmoflow@64", "x", batch=1, epochs=1, epoch=1, schedule={"learning_rate": 1e-3}, output="x"), "`epochs`")
refused(lambda: partita.train(partita.Model("model a\nfoo"), "x", batch=1, epochs=1, schedule={"learning_rate": 1e-3}, output="x"), "line 2")

if importlib.util.find_spec("numpy"):
    import numpy

    MODEL = partita.Model(
        "model tiny\ninput x channels=1 extent=8x8\nc = conv x filters=4 kernel=3 pad=1 bias=true\na = relu c\n"
        "f = flatten a\nfc = linear f features=2 bias=true\nloss = softmax_cross_entropy fc\n"
    )
    labels = numpy.arange(32) % 2
    images = (numpy.random.default_rng(0).random((32, 1, 8, 8)) + labels[:, None, None, None]).astype("float32")
    options = dict(batch=8, schedule={"learning_rate": 1e-2}, progress=False)

    class Pairs:
        def __len__(self):
            return 32

        def __getitem__(self, index):
            return images[index].astype("float64"), int(labels[index])

    seen = []

    def on_epoch(epoch):
        seen.append(epoch.training_loss)
        return len(seen) < 3

    trained = partita.train(MODEL, {"train": (images, labels), "validation": (images, labels)}, epochs=9, on_epoch=on_epoch, **options)
    assert len(trained.epochs) == 3 and trained.loss == seen[-1] < seen[0]
    assert trained.ended_early.reason

    # Whole samples, regions, two ranks, threads: the same training.
    import warnings

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again = partita.train(MODEL, Pairs(), epochs=3, ranks=2, strategy="height=2", **options)
    assert any("whole samples" in str(one.message) for one in told)
    assert abs(again.loss - trained.loss) < 1e-4
    cut = partita.train(MODEL, (images, labels.astype("uint8")), epochs=3, ranks=2, strategy="height=2", **options)
    assert abs(cut.loss - trained.loss) < 1e-4

    found = partita.evaluate(trained, (images, labels), progress=False)
    scores = partita.infer(trained, images, progress=False)
    assert scores.shape == (32, 2) and found.metrics.classification.accuracy == (scores.argmax(1) == labels).mean(), (scores.shape, found)
    refused(lambda: partita.train(MODEL, (images, labels[:4]), epochs=1, **options), "32 samples and 4 answers")
    refused(lambda: partita.train(MODEL, (images[:, 0], labels), epochs=1, **options), "channels")

    # Numbers beside the images, which decide here.
    beside = (labels[:, None] * 2 - 1).astype("float32")
    tabular = partita.Model(
        "model tabular\ninput x channels=1 extent=8x8\ninput t features=1\nf = flatten x\nz = affine f scale=0\n"
        "k = concat z t\nfc = linear k features=2\nloss = softmax_cross_entropy fc\n"
    )
    told = partita.train(tabular, ((images, beside), labels), epochs=40, ranks=2, strategy="data=2", **{**options, "schedule": {"learning_rate": 0.5}})
    scores = partita.infer(told, ((images, beside), None), progress=False)
    assert (scores.argmax(1) == labels).all(), (told.loss, scores)
    refused(lambda: partita.train(tabular, (images, labels), epochs=1, **options), "reads 1 features")

    class Random(Pairs):
        def __getitem__(self, index):
            return numpy.random.random((1, 8, 8)), 0

    refused(lambda: partita.train(MODEL, Random(), epochs=1, **options), "augmentation")

    # An exception of the callback ends the training and is raised.
    def raising(epoch):
        raise KeyError("mine")

    try:
        partita.train(MODEL, (images, labels), epochs=2, on_epoch=raising, **options)
        raise AssertionError("not raised")
    except KeyError as error:
        assert error.args == ("mine",)

    # Ctrl-C ends it with a checkpoint, from which it resumes.
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out")
        threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            partita.train(MODEL, (images, labels), epochs=1_000_000, output=output, **options)
            raise AssertionError("not interrupted")
        except KeyboardInterrupt as error:
            assert output in str(error), error
        assert os.listdir(os.path.join(output, "checkpoints"))
    print("trained arrays")
print("done")
