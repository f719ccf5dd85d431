"""What the modules of one training step get: the same tensors as in an earlier call, or rows that are copies.

Weights do not change within a step, so that a call with the same unchanged tensors, or the same views of them, gives
the same output; of tensors in CPU memory, outputs are compared, too. Objects are told apart by weak references: no
tensor lives longer. Neither operators nor code of the user's are called.
"""

from __future__ import annotations

import sys
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.models.equal_rows import distinct_fraction, first_bytes
from gpulab.capture.hooks.models.module_tree import children_of, submodules_in
from gpulab.sensors.host.frames import user_line

_MOST_CALLS = 20_000  # of modules in a step; one with more is not watched
_MOST_ARGUMENTS = 64
_MOST_ROW_CHECKS = 64  # in a step; each takes up to some milliseconds
_MOST_DISTINCT = 0.5  # of the rows: what few copies cost is not worth a change
_SIMPLE_TYPES = (int, float, bool, str, type(None))
_BY_ROW = frozenset(("Linear", "LayerNorm", "Identity", "ReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "LeakyReLU", "ELU"))

Content = tuple[bytes, ...]
Key = tuple[Any, ...]


@dataclass
class RepeatedWork:
    """The calls of one module that computed something again."""

    module: weakref.ref[Any]
    location: str | None
    calls: int = 0
    saved_ns: int = 0
    distinct: list[float] = field(default_factory=list)  # fraction of the rows, for each call with equal rows
    with_gradient: bool = False


@dataclass(frozen=True)
class _Call:
    """A call of a module that is running."""

    module: Any
    key: Key
    tensors: list[Any]
    is_again: bool  # with the same tensors as an earlier call
    distinct: float | None  # rows / rows of its only tensor, if there are many copies
    start_ns: int


class WatchedStep:
    """Notes the calls of modules from its creation until `end()`."""

    def __init__(self) -> None:
        self.is_over = False
        self.work: dict[tuple[int, bool], RepeatedWork] = {}
        self._earlier: dict[Key, tuple[list[weakref.ref[Any]], Content]] = {}
        self._repeated: _Call | None = None  # what its submodules get is part of it
        self._row_checks = 0
        self._start_ns = time.perf_counter_ns()

    def end(self) -> int:
        """Stop watching; return the duration of the step in ns."""
        self.is_over = True
        self._earlier.clear()
        return time.perf_counter_ns() - self._start_ns

    def before(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> _Call | None:
        """Note a call; None if it is not watched."""
        import torch

        if self._repeated is not None or _is_transformed() or len(self._earlier) > _MOST_CALLS:
            return None
        with torch._C.DisableTorchFunction():
            parts = _tensors_and_values([*arguments, *options.values()])
            if parts is None or not parts[0]:
                return None
            tensors, values = parts
            key = (id(module), *_first_weight(module), *values, *options)
            owners = [_owner(tensor) for tensor in tensors]
            key += (*[id(owner) for owner in owners], *[_content(tensor) for tensor in tensors])
            earlier = self._earlier.get(key)
            is_again = earlier is not None and all(
                [reference() is owner for reference, owner in zip(earlier[0], owners, strict=True)]
            )
            is_again = is_again and not _draws_random_numbers(module)
            distinct = self._distinct(module, tensors[0]) if len(tensors) == 1 and not is_again else None
        call = _Call(module, key, tensors, is_again, distinct, time.perf_counter_ns())
        if is_again or distinct is not None:
            self._repeated = call
        return call

    def after(self, call: _Call, output: Any) -> None:
        """Note the end of a call."""
        import torch

        duration_ns = time.perf_counter_ns() - call.start_ns
        if self._repeated is call:
            self._repeated = None
        with torch._C.DisableTorchFunction():
            content = first_bytes(output)
            _, earlier_content = self._earlier.get(call.key, (None, None))
            if call.is_again and content == earlier_content:
                self._add(call, duration_ns)
            elif call.distinct is not None and _has_equal_rows(output, _leading(call.module, call.tensors[0])):
                self._add(call, round((1 - call.distinct) * duration_ns))
            self._earlier[call.key] = [weakref.ref(_owner(tensor)) for tensor in call.tensors], content

    def _distinct(self, module: Any, tensor: Any) -> float | None:
        """Return distinct rows / rows if there are many copies and the module has weights."""
        if self._row_checks >= _MOST_ROW_CHECKS or not _first_weight(module) or _draws_random_numbers(module):
            return None
        self._row_checks += 1
        fraction = distinct_fraction(tensor, _leading(module, tensor))
        return fraction if fraction is not None and fraction <= _MOST_DISTINCT else None

    def _add(self, call: _Call, saved_ns: int) -> None:
        import torch

        key = id(call.module), call.is_again
        if key not in self.work:
            self.work[key] = RepeatedWork(weakref.ref(call.module), user_line(sys._getframe(1)))
        work = self.work[key]
        work.calls += 1
        work.saved_ns += saved_ns
        work.with_gradient |= torch.is_grad_enabled()
        if call.distinct is not None:
            work.distinct.append(call.distinct)


def _is_transformed() -> bool:
    """Whether a backward pass, a transform of torch.func, or a tracer calls the module."""
    import torch

    functorch: Any = torch._C._functorch
    return (
        torch._C._current_graph_task_id() != -1
        or functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


def _tensors_and_values(arguments: list[Any]) -> tuple[list[Any], list[Any]] | None:
    """Return the tensors among the arguments and their other values; None if there is an object of another kind.

    An object may change between two calls, as a KV cache does.
    """
    tensors, values, pending = [], list[Any](), arguments
    while pending:
        value = pending.pop()
        kind = type(value)
        if is_tensor(kind):
            tensors.append(value)
        elif kind in (tuple, list):
            values.append(len(value))
            pending += value[:_MOST_ARGUMENTS]
        elif kind in _SIMPLE_TYPES:
            values.append((kind, value))
        else:
            return None
        if len(tensors) + len(values) + len(pending) > _MOST_ARGUMENTS:
            return None
    return tensors, values


def _owner(tensor: Any) -> Any:
    """Return the tensor that a view shows a part of; otherwise the tensor itself."""
    import torch

    kind: Any = torch.Tensor
    is_view = not kind.is_inference(tensor) and kind._is_view(tensor)
    return kind._base.__get__(tensor) if is_view else tensor


def _content(tensor: Any) -> tuple[Any, ...]:
    """Return what decides the content of a tensor, beside its owner: which part, and how often it has changed."""
    import torch

    kind: Any = torch.Tensor
    part = (
        (kind.storage_offset(tensor), tuple(kind.stride(tensor)))
        if kind.layout.__get__(tensor) is torch.strided
        else ()
    )
    return _version(tensor), kind.dtype.__get__(tensor), tuple(kind.size(tensor)), part


def _version(tensor: Any) -> int:
    import torch

    kind: Any = torch.Tensor
    return 0 if kind.is_inference(tensor) else int(kind._version.__get__(tensor))


def _first_weight(module: Any) -> tuple[int, int] | tuple[()]:
    """Return identity and version of the first parameter in a module; () without any."""
    pending = [module]
    while pending:
        inner = pending.pop()
        parameters = object.__getattribute__(inner, "__dict__").get("_parameters")
        if issubclass(type(parameters), dict):
            weights = [value for value in dict.values(parameters) if is_tensor(type(value))]
            if weights:
                return id(weights[0]), _version(weights[0])
        pending += [child for _, child in reversed(children_of("", inner))]
    return ()


def _draws_random_numbers(module: Any) -> bool:
    """Whether dropout is active in a module; the same input then gives another output."""
    from torch import nn
    from torch.nn.modules.dropout import _DropoutNd

    for inner in submodules_in(module):
        attributes = object.__getattribute__(inner, "__dict__")
        rates = {_DropoutNd: "p", nn.RNNBase: "dropout", nn.MultiheadAttention: "dropout"}
        rate = [attributes.get(name) for kind, name in rates.items() if issubclass(type(inner), kind)]
        if attributes.get("training") and any(rate):
            return True
    return False


def _leading(module: Any, tensor: Any) -> int:
    """Return how many dimensions count rows: all but the last if each vector is computed by itself, else the first."""
    from torch import nn

    inner = [type(each) for each in submodules_in(module)]
    by_row = all([kind is nn.Sequential or (kind.__name__ in _BY_ROW and _is_of_torch(kind)) for kind in inner])
    return max(1, tensor.dim() - 1) if by_row else 1


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.")


def _has_equal_rows(output: Any, leading: int) -> bool:
    """Whether rows of the output are copies, too: the module neither mixes rows nor draws random numbers."""
    while type(output) in (tuple, list) and output:
        output = output[0]
    fraction = distinct_fraction(output, leading)
    return fraction is not None and fraction <= _MOST_DISTINCT
