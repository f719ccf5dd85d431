"""What a batch consists of, counted without calling any code of the program's."""

from collections import UserDict, namedtuple

import numpy as np
import pytest

from gpulab.capture.hooks.batch_contents import MAX_OBJECTS, describe_batch

torch = pytest.importorskip("torch")

Pair = namedtuple("Pair", ["image", "label"])
X = torch.zeros(3, 4)


class Hostile(list):
    def __iter__(self):
        raise RuntimeError("iterated")

    def __len__(self):
        raise RuntimeError("measured")


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (X, (1, 48, 0)),
        ([X, X.to(torch.int64)], (2, 144, 0)),
        (Pair(X, 5), (1, 48, 1)),
        ({"x": X, "names": ["a", "b"]}, (1, 48, 2)),
        (UserDict(x=X, y=X), (2, 96, 0)),
        ((np.zeros(10), X), (1, 128, 1)),
        ({"step": 3, "lr": np.float32(0.1)}, (0, 0, 2)),
        (Hostile([X]), (1, 48, 0)),
        (None, (0, 0, 1)),
    ],
)
def test_tensors_bytes_and_other_objects_are_counted(batch, expected):
    assert tuple(describe_batch(batch)) == expected


class Wrapper(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, *_):
        raise AssertionError("code of the program's ran")


def contains_itself():
    batch = [X]
    batch.append(batch)
    return batch


@pytest.mark.parametrize(
    "batch",
    [
        object(),
        [X, object()],
        np.array([None, "a"], dtype=object),
        X.to_sparse(),
        [X, list(range(MAX_OBJECTS + 1))],
        X.as_subclass(Wrapper),
        contains_itself(),
    ],
    ids=["an object", "with an object", "objects in an array", "sparse", "too many", "a wrapper", "itself"],
)
def test_what_cannot_be_counted_is_unknown(batch):
    assert describe_batch(batch) is None
