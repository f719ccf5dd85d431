"""Modules that are called for a sequence which grows by one position per call, as in generating text without a cache.

Only outermost calls without gradient count. Outputs show whether the earlier positions are computed again: those of a
causal model stay the same. In CPU memory, samples of them are compared. Neither operators nor code of the user's run.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.evaluations.call_sizes import has_time_first
from gpulab.capture.hooks.evaluations.growing_inputs import GrowingCalls
from gpulab.capture.hooks.models.module_tree import first_parameter
from gpulab.capture.hooks.models.tensor_memory import array_of
from gpulab.capture.hooks.models.watched_step import is_transformed, may_train
from gpulab.sensors.host.frames import user_line

_MOST_ARGUMENTS = 16
_MOST_MODULES, _MOST_CALLS = 1000, 10_000
_MOST_VALUES = 1 << 18  # of an input that is compared
_MIN_STREAK = 8  # calls, each with one position more: sorted data, whose values cannot be read, have equal lengths, too
_SIMPLE_TYPES = (int, float, bool, str, type(None))
_NO_SEQUENCE = ("mask", "position")  # in names of arguments that grow beside a cache, too
_POSITIONS, _FEATURES = 8, 16  # of an output that are compared
_TOLERANCE = 1e-3  # of the largest value: products of other sizes round differently

_INTEGER, _FLOAT = np.dtype("int64"), np.dtype("float32")

Shape = tuple[int, ...]
Array = npt.NDArray[Any]


class _Sample(NamedTuple):
    """Values of an output: some features of some positions, of the first row."""

    positions: Array
    features: Array
    values: Array


@dataclass(frozen=True)
class _Call:
    """An outermost call."""

    module: Any
    sequence: Sequence
    start_ns: int


@dataclass(frozen=True)
class Sequence:
    """The input of a call, compared with that of the call before."""

    shapes: tuple[Shape, ...]
    values: tuple[Array | None, ...]  # of each tensor, if it is small and in CPU memory
    streak: int = 0  # calls, up to this one, whose input has grown by one position
    dimension: int = 0  # that counts positions, if the input is growing
    positions: int = 0
    is_growing: bool = False
    is_sliding: bool = False
    before: _Sample | None = None  # of the output of the call before


class _Grown(NamedTuple):
    """The tensor that is one position longer than before."""

    tensor: int
    dimension: int
    has_one_dimension: bool


class SequenceCalls:
    """Notes outermost calls from its creation on."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_within = False  # an outermost call
        self.overhead_ns = 0  # what watching took
        self.modules: dict[int, GrowingCalls] = {}
        self.length_ns = 0  # from the end of the first call to that of the latest one, without what watching took
        self._start_ns = time.perf_counter_ns()
        self._first_ns: int | None = None
        self._latest: dict[int, tuple[weakref.ref[Any], Sequence, _Sample | None]] = {}
        self._has_time_first: dict[int, bool] = {}

    @property
    def age_ns(self) -> int:
        """How long ago it was created."""
        return time.perf_counter_ns() - self._start_ns

    def end(self) -> None:
        """Stop watching."""
        self.is_over = True

    def before(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> _Call | None:
        """Note a call; None if it is not an outermost one, or if it trains."""
        import torch

        if self.is_within or is_transformed() or may_train(module):
            return None
        began_ns = time.perf_counter_ns()
        with torch._C.DisableTorchFunction():
            sequence = self._sequence(module, arguments, options)
        start_ns = time.perf_counter_ns()
        self.overhead_ns += start_ns - began_ns
        self.is_within = sequence is not None
        return None if sequence is None else _Call(module, sequence, start_ns)

    def after(self, call: _Call, output: Any) -> None:
        """Note the end of a call."""
        import torch

        ended_ns = time.perf_counter_ns()
        self.is_within = False
        with torch._C.DisableTorchFunction():
            self._add(call.module, call.sequence, output, ended_ns - call.start_ns)
        self.overhead_ns += time.perf_counter_ns() - ended_ns
        self._first_ns = ended_ns - self.overhead_ns if self._first_ns is None else self._first_ns
        self.length_ns = max(0, ended_ns - self.overhead_ns - self._first_ns)

    def _sequence(self, module: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Sequence | None:
        """Compare the input with that of the call before; None for no tensor, or for an object that may be a cache."""
        reference, earlier, sample = self._latest.pop(id(module), (None, None, None))
        tensors = _named_tensors(arguments, options)
        if not tensors or len(self._latest) > _MOST_MODULES or first_parameter(module) is None:
            return None
        shapes, values = tuple([_shape(tensor) for _, tensor in tensors]), tuple([_values(each) for _, each in tensors])
        if earlier is None or reference is None or reference() is not module:
            return Sequence(shapes, values)
        grown = _grown([name for name, _ in tensors], earlier.shapes, shapes)
        if grown is None or not self._counts_positions(module, grown):
            is_sliding = shapes == earlier.shapes and _slides(earlier.values[0], values[0])
            return Sequence(shapes, values, is_sliding=is_sliding)
        positions, streak = shapes[grown.tensor][grown.dimension], earlier.streak + 1
        is_same = _starts_as(earlier.values[grown.tensor], values[grown.tensor], grown.dimension)
        is_growing = streak > _MIN_STREAK if is_same is None else is_same
        return Sequence(shapes, values, streak, grown.dimension, positions, is_growing=is_growing, before=sample)

    def _counts_positions(self, module: Any, grown: _Grown) -> bool:
        """Whether the dimension that has grown is that of the positions: the second one, unless a layer says so."""
        if grown.dimension == 1 or grown.has_one_dimension:
            return grown.dimension <= 1
        if id(module) not in self._has_time_first:
            self._has_time_first[id(module)] = has_time_first(module)
        return grown.dimension == 0 and self._has_time_first[id(module)]

    def _add(self, module: Any, call: Sequence, output: Any, duration_ns: int) -> None:
        sample = _sample(output, call.dimension, call.positions) if call.is_growing else None
        self._latest[id(module)] = weakref.ref(module), call, sample
        if not call.is_growing and not call.is_sliding:
            return
        calls = self.modules.get(id(module))
        if calls is None or calls.module() is not module:
            calls = GrowingCalls(weakref.ref(module), user_line(sys._getframe(2)))
            self.modules[id(module)] = calls
        if call.is_sliding:
            calls.sliding += 1
            calls.sliding_ns += duration_ns
            return
        calls.positions.append(call.positions)
        calls.call_ns.append(duration_ns)
        self.is_over |= len(calls.call_ns) >= _MOST_CALLS
        is_equal = None if call.before is None else _is_equal(call.before, output, call.dimension, call.positions)
        calls.equal += is_equal is True
        calls.unequal += is_equal is False


def _named_tensors(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the tensors among the arguments; [] if there is an object of another kind, such as a cache."""
    values = [*[("", value) for value in arguments], *options.items()]
    tensors = [(name, value) for name, value in values if is_tensor(type(value))]
    is_simple = all([is_tensor(type(value)) or type(value) in _SIMPLE_TYPES for _, value in values])
    if not is_simple or len(values) > _MOST_ARGUMENTS or any([not _shape(tensor) for _, tensor in tensors]):
        return []
    return tensors


def _shape(tensor: Any) -> Shape:
    """Return the sizes of a tensor; () if it has none."""
    import torch

    kind: Any = torch.Tensor
    return () if kind.is_nested.__get__(tensor) else tuple([int(size) for size in kind.size(tensor)])


def _grown(names: list[str], before: tuple[Shape, ...], now: tuple[Shape, ...]) -> _Grown | None:
    """Return which tensor has grown by one; None if anything else changed, or if the first one has one position only.

    The longer tensors are a cache then, or its mask.
    """
    if [len(shape) for shape in before] != [len(shape) for shape in now]:
        return None
    added = [[n - m for m, n in zip(*pair, strict=True)] for pair in zip(before, now, strict=True)]
    if not all([set(sizes) <= {0, 1} for sizes in added]):
        return None
    for index, (name, sizes) in enumerate(zip(names, added, strict=True)):
        if 1 not in sizes or any([part in name for part in _NO_SEQUENCE]):
            continue
        dimension = sizes.index(1)
        is_cached = dimension < len(now[0]) and now[0][dimension] == 1
        return None if is_cached or sum(sizes) > 1 else _Grown(index, dimension, len(sizes) == 1)
    return None


def _values(tensor: Any) -> Array | None:
    """Return a copy of a small tensor of tokens or features in CPU memory; None for any other."""
    import torch

    kind: Any = torch.Tensor
    types: dict[Any, np.dtype[Any]] = {torch.int64: _INTEGER, torch.float32: _FLOAT}
    dtype = types.get(kind.dtype.__get__(tensor))
    if dtype is None or kind.numel(tensor) > _MOST_VALUES:
        return None
    array = array_of(tensor, dtype)
    return None if array is None else array.copy()


def _starts_as(before: Array | None, now: Array | None, dimension: int) -> bool | None:
    """Whether the earlier positions have the same values as in the call before; None if one of them was not read."""
    if before is None or now is None:
        return None
    return np.array_equal(before, now.take(range(before.shape[dimension]), axis=dimension))


def _slides(before: Array | None, now: Array | None) -> bool:
    """Whether rows of tokens have lost their first one and got a new last one."""
    if before is None or now is None or before.shape != now.shape or now.ndim > 2 or now.shape[-1] < 2:
        return False
    return bool((before[..., 1:] == now[..., :-1]).all()) and not bool((before == now).all())


def _sample(output: Any, dimension: int, positions: int) -> _Sample | None:
    """Return values of the output for each position; None if there is no such output in CPU memory."""
    rows = _rows(output, dimension, positions)
    if rows is None:
        return None
    at = np.unique(np.linspace(0, len(rows) - 1, _POSITIONS).astype(int))
    features = np.unique(np.linspace(0, rows.shape[1] - 1, _FEATURES).astype(int))
    return _Sample(at, features, rows[np.ix_(at, features)].copy())


def _is_equal(before: _Sample, output: Any, dimension: int, positions: int) -> bool | None:
    """Whether the output has the earlier values up to rounding; None if it cannot be compared."""
    rows = _rows(output, dimension, positions)
    if rows is None or before.positions[-1] >= len(rows) or before.features[-1] >= rows.shape[1]:
        return None
    values = rows[np.ix_(before.positions, before.features)]
    limit = _TOLERANCE * float(np.abs(before.values).max(initial=0.0))
    return bool((np.abs(values - before.values) <= limit).all())


def _rows(output: Any, dimension: int, positions: int) -> Array | None:
    """Return the output of the first row of a batch, as positions and features; None if no tensor has it."""
    import torch

    parts = [output]
    if issubclass(type(output), dict):
        parts = list(dict.values(output))
    elif type(output) in (tuple, list):
        parts = list(output)
    for part in parts[:_MOST_ARGUMENTS]:
        if type(part) is torch.Tensor and torch.Tensor.dtype.__get__(part) is torch.float32:  # type: ignore[attr-defined]
            shape = _shape(part)
            if 2 <= len(shape) <= 3 and dimension < len(shape) and shape[dimension] == positions:
                array = array_of(part, _FLOAT)
                if array is None:
                    return None
                return array if len(shape) == 2 else array[:, 0] if dimension == 0 else array[0]
    return None
