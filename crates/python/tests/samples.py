"""Regions and types of samples; h5py, zarr and torch where they are installed."""

import importlib.util
import os
import tempfile
import warnings

import numpy
import partita

warnings.simplefilter("ignore")
BOUNDS = [(0, 1), (1, 3), (0, 6), (2, 8)]
volumes = numpy.random.rand(5, 1, 4, 6, 8).astype("float32")
classes = volumes[:, 0] > 0.5
VOLUME = numpy.ascontiguousarray(volumes[2, 0:1, 1:3, 0:6, 2:8]).tobytes()
CLASSES = classes[2, 1:3, 0:6, 2:8].astype("int16").tobytes()


class Pairs:
    """Whole samples."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def same(data):
    assert data.shape == (1, 4, 6, 8) and data.class_extent == [4, 6, 8] and data.counts == [5, 0, 0]
    assert data.volume("train", 2, BOUNDS) == VOLUME
    assert data.classes("train", 2, BOUNDS) == CLASSES


same(partita.Data((volumes, classes)))
same(partita.Data((volumes.astype("float64"), classes[:, None].astype("float64"))))
same(partita.Data(Pairs(volumes, classes)))
same(partita.Data(Pairs(volumes, classes[:, None].astype("int64"))))
with tempfile.TemporaryDirectory() as folder:
    numpy.save(os.path.join(folder, "x.npy"), volumes)
    same(partita.Data((numpy.load(os.path.join(folder, "x.npy"), mmap_mode="r"), classes)))
    if importlib.util.find_spec("h5py"):
        import h5py

        with h5py.File(os.path.join(folder, "a.h5"), "w") as file:
            file["x"], file["y"] = volumes, classes.astype("uint8")
            same(partita.Data((file["x"], file["y"])))
if importlib.util.find_spec("zarr"):
    import zarr

    same(partita.Data((zarr.array(volumes), zarr.array(classes.astype("int64")))))
if importlib.util.find_spec("torch"):
    import torch

    same(partita.Data((torch.from_numpy(volumes), torch.from_numpy(classes))))
    same(partita.Data(torch.utils.data.TensorDataset(torch.from_numpy(volumes), torch.from_numpy(classes))))

numbers = partita.Data((volumes, numpy.random.rand(5, 3)))
assert numbers.class_extent is None and numbers.names == ["target0", "target1", "target2"]
assert len(numbers.numbers("train", 1, [])) == 12
named = partita.Data((volumes, numpy.arange(5)), targets=["age"])
assert named.class_extent is None and named.names == ["age"]

images = numpy.arange(5 * 3 * 6 * 8).reshape(5, 3, 6, 8).astype("uint8")
pictures = partita.Data((images, numpy.arange(5)), classes=["a", "b", "c", "d", "e"])
assert pictures.dtype == "int16" and pictures.shape == (3, 1, 6, 8) and pictures.class_extent == [1, 1, 1]
assert pictures.volume("train", 4, [(0, 3), (0, 1), (2, 4), (0, 8)]) == images[4, :, 2:4].astype("int16").tobytes()
assert pictures.classes("train", 4, [(0, 1)] * 4) == numpy.array([4], "int16").tobytes()
lines = numpy.random.rand(5, 2, 9)
series = partita.Data((lines, numpy.random.rand(5)))
assert series.volume("train", 0, [(1, 2), (0, 1), (0, 1), (3, 9)]) == lines[0, 1:2, 3:9].astype("float32").tobytes()

for wrong, split in ((numpy.full((2, 1, 4, 4), 2**24 + 1), "float32"), (numpy.zeros((2, 1, 4, 4)), "16 bits")):
    data = partita.Data((wrong, numpy.full((2, 4, 4), 70_000 if split == "16 bits" else 1)))
    try:
        data.volume("train", 0, [(0, 1), (0, 1), (0, 4), (0, 4)])
        data.classes("train", 0, [(0, 1), (0, 1), (0, 4), (0, 4)])
    except ValueError as error:
        assert split in str(error), error
    else:
        raise AssertionError(f"{split} is not refused")
# Numbers beside samples: arrays, and what a dataset gives with each sample.
beside = numpy.arange(10, dtype="float64").reshape(5, 2)
for data in [
    partita.Data(((volumes, beside), classes), features=["age", "weight"]),
    partita.Data([((volumes[i], beside[i]), classes[i]) for i in range(5)], features=["age", "weight"]),
]:
    same(data)
    assert data.feature_names == ["age", "weight"]
    assert data.features("train", 3, []) == numpy.array([6, 7], dtype="float32").tobytes()
assert partita.Data((volumes, classes)).feature_names == []
assert partita.Data(((volumes, beside), classes)).feature_names == ["feature0", "feature1"]
for given, told in [
    (dict(train=((volumes, beside), classes), features=["age"]), "1 names, and a sample 2 numbers"),
    (dict(train=((volumes, beside[:4]), classes)), "a row for each"),
    (dict(train=((volumes, beside), classes), test=(volumes, classes)), "other features"),
]:
    try:
        partita.Data(**given)
    except partita.RequestError as error:
        assert told in str(error), error
    else:
        raise AssertionError(told)
print("samples are read")
