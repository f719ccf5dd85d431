"""What the modules of one step get: the shapes of layers, the same tensors as in an earlier call, rows that are copies.

Weights do not change within a step, so that a call with the same unchanged tensors, or the same views of them, gives
the same output; of tensors in CPU memory, outputs are compared, too. Objects are told apart by weak references: no
tensor lives longer. In evaluations, tensors with the same bytes in CPU memory count as the same, too. Neither operators
nor code of the user's are called.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.evaluations.call_sizes import CallSizes, SizedCall
from gpulab.capture.hooks.models.dropout_calls import TimedDropout, dropout_call
from gpulab.capture.hooks.models.equal_rows import content_hash, distinct_fraction, sampled_hashes
from gpulab.capture.hooks.models.layer_calls import TimedLayer, layer_call
from gpulab.capture.hooks.models.module_tree import draws_random_numbers, first_parameter, submodules_in
from gpulab.capture.hooks.models.separate_modules import ModuleGroup, ModuleGroups
from gpulab.capture.hooks.models.tensor_memory import version_of
from gpulab.capture.hooks.models.zero_matrices import ZeroMatrices, ZeroMatrix
from gpulab.sensors.host.frames import user_line

_MOST_CALLS = 20_000  # of modules in a step; one with more is not watched
_MOST_ARGUMENTS = 64
_MAX_ROW_CHECKS_NS = 20_000_000  # in a step, plus one check
_MAX_CONTENT_NS = 60_000_000  # in the same way
_MOST_DISTINCT = 0.5  # of the rows: what few copies cost is not worth a change
_SIMPLE_TYPES = (int, float, bool, str, type(None))
_BY_ROW = frozenset(("Linear", "LayerNorm", "Identity", "ReLU", "GELU", "SiLU", "Tanh", "Sigmoid", "LeakyReLU", "ELU"))

Hashes = tuple[int, ...]
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

    def __add__(self, other: RepeatedWork) -> RepeatedWork:
        """Add the calls of the same module in another part of the run."""
        return RepeatedWork(
            self.module,
            self.location,
            self.calls + other.calls,
            self.saved_ns + other.saved_ns,
            [*self.distinct, *other.distinct],
            self.with_gradient or other.with_gradient,
        )


class Watched(NamedTuple):
    """What is noted of a call that is running."""

    sized: SizedCall
    call: _Call | None


@dataclass(frozen=True)
class _Call:
    """A call of a module whose input is compared."""

    module: Any
    key: Key
    tensors: list[Any]
    content: Key | None  # like `key`, with the bytes of the tensors; None if they were not read
    matrices: list[ZeroMatrix]  # of mostly zeros
    group: ModuleGroup | None  # of modules of the same structure
    products: int  # calls with a matrix of mostly zeros before this one
    is_again: bool  # with the same tensors as an earlier call
    distinct: float | None  # rows / rows of its only tensor, if there are many copies


class WatchedStep:
    """Notes the calls of modules from its creation until `end()`."""

    def __init__(self, *, is_evaluation: bool = False) -> None:
        self.is_over = self.is_within = False
        self._is_evaluation = is_evaluation
        self.work: dict[Key, RepeatedWork] = {}
        self.layers: Counter[TimedLayer] = Counter()
        self.dropouts: Counter[TimedDropout] = Counter()
        self.zeros = ZeroMatrices()
        self.groups = ModuleGroups()
        self.sizes = CallSizes(outermost=is_evaluation)
        self._earlier: dict[Key, tuple[list[weakref.ref[Any]], Hashes]] = {}
        self._contents: dict[Key, Hashes] = {}  # of the outputs
        self._samples: set[Key] = set()  # of the bytes of tensors
        self._content_budget_ns = _MAX_CONTENT_NS if is_evaluation else 0
        self._repeated: _Call | None = None  # what its submodules get is part of it
        self._row_checks_ns = 0
        self._start_ns = time.perf_counter_ns()

    @property
    def overhead_ns(self) -> int:
        """What watching took so far."""
        return self.sizes.overhead_ns

    @property
    def age_ns(self) -> int:
        """How long ago it was created."""
        return time.perf_counter_ns() - self._start_ns

    def end(self) -> int:
        """Stop watching; return the duration of the step in ns, without what watching took."""
        self.is_over = True
        self._repeated = None  # it holds the inputs of a call that failed
        self._earlier.clear()
        self._contents.clear()
        self._samples.clear()
        return self.age_ns - self.sizes.overhead_ns

    def before(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Watched | None:
        """Note a call; None if it is not watched."""
        import torch

        if is_transformed() or (self._is_evaluation and may_train(module)):
            return None
        began_ns = time.perf_counter_ns()
        with torch._C.DisableTorchFunction():
            call = self._compared(module, arguments, options)
            sizes = self.sizes.sizes_of(module, arguments, options)
        return Watched(self.sizes.start(module, sizes, began_ns), call)

    def after(self, watched: Watched, output: Any) -> None:
        """Note the end of a call."""
        began_ns = time.perf_counter_ns()
        duration_ns = self.sizes.leave(watched.sized, began_ns)
        if watched.call is not None:
            self._compare(watched.call, output, duration_ns)
        self.sizes.overhead_ns += time.perf_counter_ns() - began_ns

    def _compared(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> _Call | None:
        if len(self._earlier) > _MOST_CALLS:
            return None
        if (layer := layer_call(module, arguments, options)) is not None:
            self.layers[layer] += 1
        if (dropout := dropout_call(module, arguments)) is not None:
            self.dropouts[dropout] += 1
        if self._repeated is not None:
            return None
        parts = _tensors_and_values([*arguments, *options.values()])
        if parts is None or not parts[0]:
            return None
        tensors, values = parts
        call_key = (id(module), *_state(module), *values, *options)
        owners = [_owner(tensor) for tensor in tensors]
        key = (*call_key, *[id(owner) for owner in owners], *[_content(tensor) for tensor in tensors])
        earlier = self._earlier.get(key)
        references = [] if earlier is None or _may_have_changed(tensors) else earlier[0]
        is_again = bool(references) and all(
            [reference() is owner for reference, owner in zip(references, owners, strict=True)]
        )
        content = None if is_again else self._content_key(module, call_key, tensors)
        is_again = (is_again or content in self._contents) and not _draws_random_numbers(module)
        distinct = self._distinct(module, tensors[0]) if len(tensors) == 1 and not is_again else None
        matrices = self.zeros.among(tensors)
        group = self.groups.note(module, tensors, owners, layer)
        call = _Call(module, key, tensors, content, matrices, group, self.zeros.calls, is_again, distinct)
        if is_again or distinct is not None:
            self._repeated = call
        return call

    def _compare(self, call: _Call, output: Any, duration_ns: int) -> None:
        """Compare the output of a call with that of an earlier one."""
        import torch

        if self._repeated is call:
            self._repeated = None
        if call.group is not None:
            call.group.total_ns += duration_ns
            call.group.location = call.group.location or user_line(sys._getframe(1))
        with torch._C.DisableTorchFunction():
            hashes = sampled_hashes(output)
            _, earlier_hashes = self._earlier.get(call.key, (None, None))
            if call.content is not None:
                earlier_hashes = self._contents.setdefault(call.content, hashes)
            if call.is_again and hashes == earlier_hashes and (hashes or not _is_on_cpu(call.tensors)):
                self._add(call, duration_ns)
            elif call.distinct is not None and _has_equal_rows(output, _leading(call.module, call.tensors[0])):
                self._add(call, round((1 - call.distinct) * duration_ns))
            if call.matrices and call.products == self.zeros.calls:  # no inner module got it
                self.zeros.add(call.module, call.matrices, output, user_line(sys._getframe(1)), duration_ns)
            self._earlier[call.key] = [weakref.ref(_owner(tensor)) for tensor in call.tensors], hashes

    def _content_key(self, module: Any, call_key: Key, tensors: list[Any]) -> Key | None:
        """Return what decides the output of a module with weights, from all bytes of its tensors.

        None the first time that a sample of these bytes occurs, because reading all of them takes long.
        """
        if self._content_budget_ns <= 0 or first_parameter(module) is None:
            return None
        began_ns = time.thread_time_ns()
        sample_key = (*call_key, *sampled_hashes(tensors))
        hashes = [content_hash(tensor) for tensor in tensors] if sample_key in self._samples else []
        self._samples.add(sample_key)
        self._content_budget_ns -= time.thread_time_ns() - began_ns
        return (*call_key, *hashes) if hashes and None not in hashes else None

    def _distinct(self, module: Any, tensor: Any) -> float | None:
        """Return distinct rows / rows if there are many copies and the module has weights."""
        if (
            self._row_checks_ns >= _MAX_ROW_CHECKS_NS
            or first_parameter(module) is None
            or _draws_random_numbers(module)
        ):
            return None
        began_ns = time.perf_counter_ns()
        fraction = distinct_fraction(tensor, _leading(module, tensor))
        self._row_checks_ns += time.perf_counter_ns() - began_ns
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


def is_transformed() -> bool:
    """Whether a backward pass, a transform of torch.func, or a tracer calls the module."""
    import torch

    functorch: Any = torch._C._functorch
    return (
        torch._C._current_graph_task_id() != -1
        or functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
    )


def _state(module: Any) -> Key:
    """Return what decides the output of a module beside its input: its weights, its mode and autocast."""
    import torch

    weight = first_parameter(module)
    mode = object.__getattribute__(module, "__dict__").get("training")
    weights = () if weight is None else (id(weight), version_of(weight))
    return (*weights, bool(mode), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"))


def may_train(module: Any) -> bool:
    """Whether a call trains a module: it may come right after an evaluation, before the sampler's thread sees it."""
    import torch

    return torch.is_grad_enabled() and object.__getattribute__(module, "__dict__").get("training") is not False


def _may_have_changed(tensors: list[Any]) -> bool:
    """Whether a tensor counts no changes, as those of inference mode, and outputs on a GPU are not compared."""
    import torch

    kind: Any = torch.Tensor
    return any([kind.is_inference(tensor) and not kind.is_cpu.__get__(tensor) for tensor in tensors])


def _is_on_cpu(tensors: list[Any]) -> bool:
    import torch

    kind: Any = torch.Tensor
    return any([kind.is_cpu.__get__(tensor) for tensor in tensors])


def _draws_random_numbers(module: Any) -> bool:
    """Whether dropout is active in a module; the same input then gives another output."""
    return any([draws_random_numbers(inner) for inner in submodules_in(module)])


def _tensors_and_values(arguments: list[Any]) -> tuple[list[Any], list[Any]] | None:
    """Return the tensors among the arguments and their other values; None if there is an object of another kind.

    An object may change between two calls, as a KV cache does.
    """
    import torch

    tensors, values, pending = [], list[Any](), arguments
    while pending:
        value = pending.pop()
        kind = type(value)
        if is_tensor(kind) and not torch.Tensor.is_nested.__get__(value):  # type: ignore[attr-defined]
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
    base = None if kind.is_inference(tensor) else kind._base.__get__(tensor)
    return tensor if base is None else base


def _content(tensor: Any) -> tuple[Any, ...]:
    """Return what decides the content of a tensor, beside its owner: which part, and how often it has changed."""
    import torch

    kind: Any = torch.Tensor
    part = (
        (kind.storage_offset(tensor), tuple(kind.stride(tensor)))
        if kind.layout.__get__(tensor) is torch.strided
        else ()
    )
    return version_of(tensor), kind.dtype.__get__(tensor), tuple(kind.size(tensor)), part


def _leading(module: Any, tensor: Any) -> int:
    """Return how many dimensions count rows: all but the last if each vector is computed by itself, else the first."""
    import torch
    from torch import nn

    inner = [type(each) for each in submodules_in(module)]
    by_row = all([kind is nn.Sequential or (kind.__name__ in _BY_ROW and _is_of_torch(kind)) for kind in inner])
    return max(1, torch.Tensor.dim(tensor) - 1) if by_row else 1


def _is_of_torch(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.")


def _has_equal_rows(output: Any, leading: int) -> bool:
    """Whether rows of the output are copies, too: the module neither mixes rows nor draws random numbers."""
    while type(output) in (tuple, list) and output:
        output = output[0]
    fraction = distinct_fraction(output, leading)
    return fraction is not None and fraction <= _MOST_DISTINCT
