"""Samples of Python objects: arrays that can be sliced, and datasets that give whole samples."""

import os
import threading
import warnings
from collections import OrderedDict
from typing import Any, List, Optional, Sequence, Tuple

from ._partita import RequestError

Bounds = Sequence[Tuple[int, int]]
#: Samples that are kept, so that each rank and both of its reads see the same one.
KEPT = 16


class Data:
    """Samples with targets for ``train``, ``evaluate`` and ``infer``.

    train, validation, test: ``(x, y)`` or an object with ``__len__`` and ``__getitem__`` that gives ``(x, y)`` of one
    sample, like a ``torch.utils.data.Dataset``. ``x`` and ``y`` are numpy arrays, memory maps, datasets of h5py, arrays of
    zarr, tensors, or anything else with ``shape``, ``dtype`` and slices. Of these only the regions that a rank needs are
    read. Any other object gives whole samples to each rank, which costs as much reading for each part as for the whole.

    Shapes: ``x`` is (N, C, D, H, W), (N, C, H, W) or (N, C, W). ``y`` is (N,) or (N, K) for numbers, (N,) for a class of each
    sample, or (N, D, H, W), (N, 1, D, H, W) and the like for a class of each position.

    Types: ``x`` of 8 or 16 bits is int16, all others are float32; integers that float32 does not hold are refused.
    ``y`` of floats is numbers, of integers and bools is classes. ``targets=`` with names makes numbers of any type.

    A network of two inputs reads numbers beside each sample: ``((x, t), y)`` with ``t`` of (N, F), or of (F,) for one sample.

    targets: names of numbers. features: names of the numbers beside samples. classes: names of classes, from class 0 on. name: in messages and results.
    """

    def __init__(
        self,
        train: Any = None,
        validation: Any = None,
        test: Any = None,
        *,
        targets: Optional[Sequence[str]] = None,
        classes: Optional[Sequence[str]] = None,
        features: Optional[Sequence[str]] = None,
        name: str = "arrays",
    ):
        given = {"train": train, "validation": validation, "test": test}
        self.name = name
        self._splits = {split: _samples(one, split) for split, one in given.items() if one is not None}
        if not self._splits:
            raise RequestError("there are no samples\nhelp: give `train=`, `validation=` or `test=`")
        first = next(iter(self._splits.values()))
        sample, answer = first.sample(0)
        self.extents = _shape4(sample.shape, first.text)
        #: Element type of the network's input before its preparation.
        self.dtype = "int16" if sample.dtype.kind in "iub" and sample.dtype.itemsize < 2 or sample.dtype == "int16" else "float32"
        self.counts = [len(self._splits[split]) if split in self._splits else 0 for split in given]
        self.class_extent, self.names = self._answers(answer, targets, classes)
        self.feature_names = _feature_names(first.features(0), features)
        for one in self._splits.values():
            one.check(self)

    @property
    def shape(self) -> Tuple[int, ...]:
        """(C, D, H, W) of a sample."""
        return tuple(self.extents)

    def _answers(self, answer: Any, targets: Optional[Sequence[str]], classes: Optional[Sequence[str]]) -> Tuple[Optional[List[int]], List[str]]:
        """D, H, W of the classes of a sample, or none for numbers; names."""
        if answer is None:
            return [1, 1, 1], []
        spatial = self.extents[1:]
        extents = [extent for extent in answer.shape if extent != 1]
        is_spatial = bool(extents) and extents == [extent for extent in spatial if extent != 1]
        if targets is None and (is_spatial or classes is not None or answer.dtype.kind in "iub"):
            if not is_spatial and answer.size != 1:
                raise RequestError(
                    f"classes of a sample have the shape {tuple(answer.shape)}, and the sample (D, H, W) = {tuple(spatial)}\n"
                    "help: a class for each sample or for each position; with `targets=[...]` they are numbers"
                )
            return (list(spatial) if is_spatial else [1, 1, 1]), list(classes or [])
        names = list(targets) if targets is not None else [f"target{index}" for index in range(answer.size)]
        if len(names) != answer.size:
            raise RequestError(f"`targets` has {len(names)} names, and a sample {answer.size} numbers\nhelp: one name for each")
        return None, names

    def volume(self, split: str, sample: int, bounds: Bounds) -> bytes:
        """A region of a sample as bytes of ``dtype``."""
        values = self._splits[split].volume(sample, bounds, self.extents)
        return _converted(values, self.dtype, f"sample {sample} of `{split}`")

    def numbers(self, split: str, sample: int, _bounds: Bounds) -> bytes:
        """The numbers of a sample as bytes of float32."""
        import numpy

        return numpy.ascontiguousarray(self._splits[split].answer(sample), dtype="float32").tobytes()

    def features(self, split: str, sample: int, _bounds: Bounds) -> bytes:
        """The numbers beside a sample as bytes of float32."""
        return _converted(self._splits[split].features(sample), "float32", f"features of sample {sample} of `{split}`")

    def classes(self, split: str, sample: int, bounds: Bounds) -> bytes:
        """A region of the classes of a sample as bytes of int16."""
        values = self._splits[split].classes(sample, bounds, self.class_extent)
        return _converted(values, "int16", f"classes of sample {sample} of `{split}`")

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {split}" for split, count in zip(("train", "validation", "test"), self.counts) if count)
        return f"<Data {counts}, (C, D, H, W) = {self.shape}, {self.dtype}>"


def data_of(data: Any, split: str = "train") -> Any:
    """``data=`` of a verb: a path as it is, anything else as samples."""
    if isinstance(data, (str, os.PathLike)):
        return os.fspath(data)
    if isinstance(data, Data):
        return data
    if isinstance(data, dict):
        return Data(**data)
    return Data(**{split: data})


def _feature_names(values: Any, names: Optional[Sequence[str]]) -> List[str]:
    """Names of the numbers beside a sample; none where there are none."""
    count = 0 if values is None else values.size
    found = [f"feature{index}" for index in range(count)] if names is None else list(names)
    if len(found) != count:
        raise RequestError(
            f"`features` has {len(found)} names, and a sample {count} numbers beside it\nhelp: one name for each; numbers are given as ((x, t), y)"
        )
    return found


def _is_sliceable(data: Any) -> bool:
    return hasattr(data, "shape") and hasattr(data, "dtype") and hasattr(data, "__getitem__")


def _array(values: Any) -> Any:
    """A value as an array of numpy; floats that numpy does not have as float32."""
    import numpy

    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":
            values = values.float()
    return numpy.asarray(values)


def _shape4(shape: Sequence[int], text: str) -> List[int]:
    """(C, D, H, W) of a sample."""
    if not 2 <= len(shape) <= 4:
        raise RequestError(
            f"{text} has samples of the shape {tuple(shape)}\n"
            "help: they are (C, D, H, W), (C, H, W) or (C, W); `x[:, None]` adds a dim for one channel"
        )
    return [shape[0]] + [1] * (4 - len(shape)) + list(shape[1:])


def _converted(values: Any, dtype: str, text: str) -> bytes:
    """Values as bytes of a type; integers and classes must be exact in it."""
    import numpy

    with numpy.errstate(invalid="ignore"):
        converted = numpy.ascontiguousarray(values, dtype=dtype)
    is_exact = dtype == "float32" and values.dtype.kind == "f" or numpy.can_cast(values.dtype, dtype)
    if not is_exact and not numpy.array_equal(converted.astype("float64"), values.astype("float64")):
        what = "whole numbers of 16 bits" if dtype == "int16" else "numbers that float32 holds"
        raise ValueError(f"{text} has values of {values.dtype} that are no {what}")
    return converted.tobytes()


def _cut(values: Any, bounds: Bounds, extents: Sequence[int]) -> Any:
    """A region of a whole (C, D, H, W)."""
    return values.reshape(extents)[tuple(slice(start, end) for start, end in bounds)]


def _samples(given: Any, split: str) -> "_Samples":
    """The samples of a split."""
    if isinstance(given, tuple) and len(given) == 2:
        x, beside = _beside(given[0])
        if _is_sliceable(x) and len(x.shape) >= 3:
            return _Arrays(x, given[1], split, beside)
    if _is_sliceable(given):
        return _Arrays(given, None, split)
    if hasattr(given, "__len__") and hasattr(given, "__getitem__"):
        return _Dataset(given, split)
    raise RequestError(
        f"`{split}` is {type(given).__name__}, which has no samples\n"
        "help: (x, y) of arrays, or an object with `__len__` and `__getitem__`, like a torch.utils.data.Dataset"
    )


class _Samples:
    """Samples of a split."""

    text = ""

    def sample(self, index: int) -> Tuple[Any, Any]:
        """Sample and answer, whole, as arrays of numpy; no answer where there is none."""
        raise NotImplementedError

    def features(self, index: int) -> Any:
        """The numbers beside a sample, flat; none where there are none."""
        raise NotImplementedError

    def volume(self, index: int, bounds: Bounds, extents: Sequence[int]) -> Any:
        """A region of a sample."""
        return _cut(self.sample(index)[0], bounds, extents)

    def answer(self, index: int) -> Any:
        """The answer of a sample, flat."""
        return self.sample(index)[1].reshape(-1)

    def classes(self, index: int, bounds: Bounds, extent: Sequence[int]) -> Any:
        """A region of the classes of a sample."""
        return _cut(self.sample(index)[1], bounds, [1, *extent])

    def check(self, data: Data) -> None:
        """Refuses samples of other shapes than those of ``data``."""
        sample, answer = self.sample(0)
        beside = self.features(0)
        if (0 if beside is None else beside.size) != len(data.feature_names):
            raise RequestError(f"{self.text} has other features than the first split, {len(data.feature_names)}\nhelp: all splits have the same")
        if _shape4(sample.shape, self.text) != data.extents:
            raise RequestError(f"{self.text} has samples of {tuple(sample.shape)}, others of {data.shape}\nhelp: all splits have the same")
        if answer is None:
            return
        wanted = len(data.names) if data.class_extent is None else _product(data.class_extent)
        if answer.size != wanted:
            raise RequestError(f"{self.text} has answers of the shape {tuple(answer.shape)}, others {wanted} values\nhelp: all splits have the same")


def _beside(x: Any) -> Tuple[Any, Any]:
    """A sample, or all, and the numbers beside it: ``(x, t)``, or ``x`` alone."""
    if isinstance(x, (tuple, list)) and len(x) == 2 and hasattr(x[0], "shape"):
        return x[0], x[1]
    return x, None


def _product(extents: Sequence[int]) -> int:
    product = 1
    for extent in extents:
        product *= extent
    return product


class _Arrays(_Samples):
    """Arrays that are sliced."""

    def __init__(self, x: Any, y: Any, split: str, beside: Any = None):
        self.text = f"`{split}`"
        self.x = x
        self.y = y
        self.beside = None if beside is None else _array(beside)
        if y is not None and not _is_sliceable(y):
            self.y = _array(y)
        if not x.shape[0]:
            raise RequestError(f"{self.text} has no samples")
        if self.y is not None and int(self.y.shape[0]) != len(self):
            raise RequestError(f"{self.text} has {len(self)} samples and {self.y.shape[0]} answers\nhelp: one for each")
        if self.beside is not None and self.beside.shape[:1] != (len(self),):
            raise RequestError(f"{self.text} has {len(self)} samples and features of the shape {self.beside.shape}\nhelp: a row for each")

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def sample(self, index: int) -> Tuple[Any, Any]:
        return _array(self.x[index]), None if self.y is None else _array(self.y[index])

    def features(self, index: int) -> Any:
        return None if self.beside is None else self.beside[index].reshape(-1)

    def volume(self, index: int, bounds: Bounds, extents: Sequence[int]) -> Any:
        return _region(self.x, index, bounds, len(self.x.shape) - 2)

    def answer(self, index: int) -> Any:
        return _array(self.y[index]).reshape(-1)

    def classes(self, index: int, bounds: Bounds, extent: Sequence[int]) -> Any:
        dims = len(self.y.shape) - 1
        is_spatial = dims > 0 and list(extent) != [1, 1, 1]
        if not is_spatial:
            return _cut(_array(self.y[index]), bounds, [1, *extent])
        # (N, 1, spatial) or (N, spatial).
        spatial = len(self.x.shape) - 2
        return _region(self.y, index, bounds[-spatial:] if dims == spatial else bounds, spatial)


def _region(array: Any, index: int, bounds: Bounds, spatial: int) -> Any:
    """A region of a sample of an array of (N, C, spatial) or (N, spatial)."""
    if len(bounds) > spatial:
        bounds = [bounds[0], *bounds[len(bounds) - spatial :]]
    return _array(array[(index, *(slice(start, end) for start, end in bounds))])


class _Dataset(_Samples):
    """An object that gives whole samples."""

    def __init__(self, given: Any, split: str):
        self.text = f"`{split}` ({type(given).__name__})"
        self.given = given
        self.lock = threading.Lock()
        self.kept: "OrderedDict[int, Tuple[Any, Any, Any]]" = OrderedDict()
        self.warned = False
        if not len(given):
            raise RequestError(f"{self.text} has no samples")
        self._check_repeats()

    def __len__(self) -> int:
        return len(self.given)

    def _check_repeats(self) -> None:
        """Ranks that share a sample, and the reads of an epoch, rely on one sample for one index."""
        import numpy

        first, again = (_array(_beside(_pair(self.given[0])[0])[0]) for _ in range(2))
        if first.shape != again.shape or not numpy.array_equal(first, again, equal_nan=first.dtype.kind == "f"):
            raise RequestError(
                f"{self.text} gives another sample when it is asked again for sample 0\n"
                "help: leave random augmentation to `augmentation=`, which is the same under every strategy"
            )

    def _whole(self, index: int) -> Tuple[Any, Any, Any]:
        """Sample, answer and features."""
        with self.lock:
            found = self.kept.pop(index, None)
            if found is None:
                given, y = _pair(self.given[index])
                x, beside = _beside(given)
                found = _array(x), None if y is None else _array(y), None if beside is None else _array(beside).reshape(-1)
            self.kept[index] = found
            if len(self.kept) > KEPT:
                self.kept.popitem(last=False)
            return found

    def sample(self, index: int) -> Tuple[Any, Any]:
        return self._whole(index)[:2]

    def features(self, index: int) -> Any:
        return self._whole(index)[2]

    def volume(self, index: int, bounds: Bounds, extents: Sequence[int]) -> Any:
        values = super().volume(index, bounds, extents)
        if values.size < _product(extents) and not self.warned:
            self.warned = True
            warnings.warn(
                f"{self.text} gives whole samples alone: a rank that needs 1/{_product(extents) // values.size} of a sample "
                f"reads all of it. Arrays that can be sliced, like those of numpy, h5py and zarr, are read in parts.",
                stacklevel=2,
            )
        return values


def _pair(sample: Any) -> Tuple[Any, Any]:
    """Sample and answer of what a dataset gives."""
    if isinstance(sample, dict):
        keys = [(x, y) for x, y in (("image", "label"), ("x", "y"), ("input", "target")) if x in sample]
        if not keys:
            raise RequestError(f"a sample has the keys {', '.join(sample)}\nhelp: `image` and `label`, or (x, y)")
        return sample[keys[0][0]], sample.get(keys[0][1])
    if isinstance(sample, (tuple, list)):
        return sample[0], sample[1] if len(sample) > 1 else None
    return sample, None
