"""Arrays of the kernel simulator, which record each read and write of a thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

GLOBAL, SHARED, CONSTANT = "global", "shared", "constant"
ALIGNMENT_BYTES = 256  # cudaMalloc returns addresses that are multiples of 256


class Access(NamedTuple):
    """One read or write of one thread."""

    block: int  # number of the block
    thread: int  # number of the thread in its block
    space: str
    array: str  # name of the parameter, or of the shared array
    is_store: bool
    line: int  # of the source
    nth: int  # how many accesses of this thread to this array by this line came before
    address: int  # in bytes
    size: int  # in bytes


class Recorder(Protocol):
    """What an array needs of the running thread."""

    def record(self, space: str, array: str, is_store: bool, line: int, address: int, size: int) -> None:
        """Record an access of the running thread."""

    def position(self) -> str:
        """Return block and thread, for an error message."""


class DeviceArray:
    """An array in the memory of the simulated GPU. A kernel reads and writes single elements of it."""

    def __init__(
        self, values: np.ndarray[Any, Any], space: str, name: str, base: int, running: Callable[[], Recorder]
    ) -> None:
        self._values, self._space, self._name, self._base, self._running = values, space, name, base, running

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each dimension."""
        return tuple(self._values.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._values.size

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._values.ndim

    @property
    def dtype(self) -> Any:
        """Type of the elements."""
        return self._values.dtype

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: Any) -> Any:
        __tracebackhide__ = True  # IPython then shows the lines of the kernel only
        place = self._access(index, False, sys._getframe(1).f_lineno)
        return self._values[place]

    def __setitem__(self, index: Any, value: Any) -> None:
        __tracebackhide__ = True
        place = self._access(index, True, sys._getframe(1).f_lineno)
        self._values[place] = value

    def _access(self, index: Any, is_store: bool, line: int) -> tuple[int, ...]:
        __tracebackhide__ = True
        places = index if isinstance(index, tuple) else (index,)
        thread = self._running()
        if len(places) != self._values.ndim or any(isinstance(each, slice) for each in places):
            example = ", ".join("ijk"[: self._values.ndim])
            raise IndexError(f"a thread reads and writes single numbers of {self._name}: write {self._name}[{example}]")
        place = tuple(int(each) for each in places)
        for position, length in zip(place, self._values.shape, strict=True):
            if not 0 <= position < length:
                raise IndexError(
                    f"{self._name}[{', '.join(map(str, place))}] is outside of its shape {self._values.shape}, "
                    f"in {thread.position()}. On a GPU, this reads or destroys other data, often without an error."
                )
        address = self._base + sum(each * stride for each, stride in zip(place, self._values.strides, strict=True))
        thread.record(self._space, self._name, is_store, line, address, self._values.itemsize)
        return place


def offset_in_base(values: np.ndarray[Any, Any]) -> int:
    """Return by how many bytes a view begins after the array that it shows; 0 for an array of its own."""
    owner = values
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return int(values.__array_interface__["data"][0]) - int(owner.__array_interface__["data"][0])
