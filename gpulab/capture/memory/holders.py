"""What holds memory when it runs out: every live tensor, counted once, for the first holder that must release it.

Order of holders: models (parameters, gradients), optimizers, the user's variables, outputs of earlier cells, the failed
step itself, an earlier error; then tensors without a known name. Memory kept by the autograd graph of a holder is
counted separately. Nothing is kept alive, none of the user's code is called, and the search takes at most two seconds.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, TracebackType
from typing import Any

from gpulab.capture.hooks.user_variables import frame_variables
from gpulab.capture.memory.out_of_memory import all_frames, exception_chain, frames_without_allocator
from gpulab.capture.memory.reachable_tensors import Deadline, TensorSearch, attributes
from gpulab.rows import Rows
from gpulab.run import Failure, Gap
from gpulab.sensors.host.frames import is_user_frame
from gpulab.tables import HOLDERS
from gpulab.wording import duration

LIMIT_S = 2.0
FAILED_STEP = "the step under way"
EARLIER_ERROR = "sys.last_traceback"
UNNAMED_OBJECTS = "objects without a name"
PYTORCH_INTERNAL = "PyTorch's own C++ code"
_CACHED = re.compile(r"_(?:_{0,2}|\d+)$")  # _, __, ___ and _12: IPython's cached outputs


@dataclass
class _Holder:
    """Memory that one name holds and no holder before it."""

    name: str
    kind: str
    bytes: int = 0
    tensors: int = 0
    largest: tuple[int, str] = (0, "")


StorageFilter = Callable[[int], bool]  # whether the storage at this address is memory of the device


def every_storage(address: int) -> bool:
    """Count every storage as memory of the device."""
    return True


@dataclass
class _Tally:
    """Tensors on one device, each storage counted once."""

    device: str  # "cuda", "cpu"
    index: int | None
    counts: StorageFilter = every_storage
    storages: set[int] = field(default_factory=set)
    holders: dict[tuple[str, str], _Holder] = field(default_factory=dict)

    def claim(self, name: str, kind: str, tensors: Iterable[Any]) -> list[Any]:
        """Count tensors for this holder unless an earlier one holds them; returns all of its tensors, on any device."""
        claimed = list(tensors)
        for tensor in claimed:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse and fake tensors have no storage
                self._count(name, kind, tensor)
        return claimed

    def _count(self, name: str, kind: str, tensor: Any) -> None:
        device = tensor.device
        if device.type != self.device or (self.index is not None and device.index not in (None, self.index)):
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self.storages or not self.counts(storage._cdata):
            return
        self.add(name, kind, storage._cdata, storage.nbytes(), partial(_description, tensor))

    def add(self, name: str, kind: str, address: int, size: int, description: Callable[[], str]) -> None:
        """Count one tensor with its storage at this address for this holder."""
        self.storages.add(address)
        holder = self.holders.setdefault((name, kind), _Holder(name, kind))
        holder.bytes += size
        holder.tensors += 1
        if size > holder.largest[0]:
            holder.largest = size, description()


class EarlierError:
    """Tensors held by the error of an earlier cell, recorded before the recorded cell replaces that error."""

    def __init__(self) -> None:
        self._tensors: list[tuple[Any, int, str, int | None, str]] = []
        trace = getattr(sys, "last_traceback", None)
        if trace is not None and "torch" in sys.modules:
            with _without_overrides():
                self._note(trace)

    def _note(self, traceback: TracebackType) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        reach = TensorSearch(Deadline(LIMIT_S / 10))
        storages: set[int] = set()
        for frame in frames_without_allocator(traceback):
            if not _is_global(frame):
                direct = [tensor for value in frame_variables(frame).values() for tensor in reach.tensors(value)]
                for tensor in (*direct, *reach.saved_tensors(direct)):
                    with contextlib.suppress(RuntimeError, NotImplementedError):
                        storage = tensor.untyped_storage()
                        if storage._cdata not in storages:
                            storages.add(storage._cdata)
                            device = tensor.device
                            entry = StorageWeakRef(storage), storage.nbytes(), device.type, device.index
                            self._tensors.append((*entry, _description(tensor)))

    def count(self, tally: _Tally) -> None:
        """Count what nobody else holds. Some of it may have been freed when the recorded cell raised its own error."""
        for reference, size, device, index, description in self._tensors:
            on_device = device == tally.device and (tally.index is None or index in (None, tally.index))
            new = reference.cdata not in tally.storages or reference.expired()
            if on_device and new and tally.counts(reference.cdata):
                tally.add(EARLIER_ERROR, "traceback", reference.cdata, size, partial(str, description))


def find_holders(
    failure: Failure,
    error: BaseException,
    earlier: EarlierError | None = None,
    limit_s: float = LIMIT_S,
    storage_filter: StorageFilter = every_storage,
) -> tuple[Rows, tuple[Gap, ...]]:
    """Memory holders on the device that ran out, as rows of tables.HOLDERS, and a gap if the search was cut short."""
    if "torch" not in sys.modules:
        return HOLDERS.empty(), ()
    deadline = Deadline(limit_s)
    with _without_overrides():
        tally = _tally_all(failure, error, earlier, deadline, storage_filter)
    counted_bytes = sum(holder.bytes for holder in tally.holders.values())
    if failure.allocated_bytes is not None and failure.allocated_bytes > counted_bytes and not deadline.passed:
        uncounted = _Holder(PYTORCH_INTERNAL, "other", failure.allocated_bytes - counted_bytes, -1)
        tally.holders[PYTORCH_INTERNAL, "other"] = uncounted
    gap = Gap(
        what="some memory holders",
        why=f"there are so many objects that the search reached its limit of {duration(1e9 * limit_s)}",
        fix="keep large collections out of the notebook's variables, or use torch.cuda.memory_snapshot()",
    )
    return _rows(tally, failure.device), (gap,) if deadline.passed else ()


def _tally_all(
    failure: Failure, error: BaseException, earlier: EarlierError | None, deadline: Deadline, counts: StorageFilter
) -> _Tally:
    tensors, modules, optimizers = _live_objects(deadline)
    tally = _Tally(*_device(failure, tensors), counts)
    main = sys.modules["__main__"].__dict__
    outputs = main.get("Out") if isinstance(main.get("Out"), dict) else {}
    reach = TensorSearch(deadline, closed=(main, outputs, sys.modules))
    frames = [frame for frame in all_frames(error) if not _is_global(frame)]
    spaces = [(frame, frame_variables(frame)) for frame in frames]
    # From the outermost frame inward: a caller holds its variables longer than the function it calls.
    user_variables = [(name, "", value) for name, value in list(main.items()) if not name.startswith("_")]
    for frame, space in spaces:
        if is_user_frame(frame):
            user_variables += [(name, f" in {frame.f_code.co_name}()", value) for name, value in space.items()]
    named_values = [(name, value) for name, _, value in user_variables]
    _claim_models(tally, reach, named_values, modules)
    _claim_optimizers(tally, reach, named_values, optimizers)
    for name, function, value in user_variables:
        if value is not outputs and name not in ("In", "Out"):
            _claim(tally, reach, f"{name}{function}", "variable", value)
    for number, value in list(outputs.items()) if isinstance(outputs, dict) else ():
        _claim(tally, reach, f"Out[{number}]", "output", value)
    for name, value in list(main.items()):
        if _CACHED.match(name):
            _claim(tally, reach, name, "output", value)
    for _, space in spaces:
        for value in space.values():
            _claim(tally, reach, FAILED_STEP, "variable", value)
    _claim_previous_error(tally, reach, error)
    if earlier is not None:
        earlier.count(tally)
    tally.claim(UNNAMED_OBJECTS, "other", tensors)
    defined = [tensor for tensor in tensors if _is_defined(tensor)]
    tally.claim(UNNAMED_OBJECTS, "gradient", _gradients(defined))
    tally.claim(UNNAMED_OBJECTS, "graph", reach.saved_tensors(defined))
    return tally


def _live_objects(deadline: Deadline) -> tuple[list[Any], list[Any], list[Any]]:
    """All tensors, modules and optimizers that Python's garbage collector tracks."""
    import torch

    base_classes = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    objects: tuple[list[Any], ...] = ([], [], [])
    class_indices: dict[int, int] = {}
    for count, candidate in enumerate(gc.get_objects()):
        kind = type(candidate)
        index = class_indices.get(id(kind))
        if index is None:
            index = next(iter([number for number, base in enumerate(base_classes) if issubclass(kind, base)]), -1)
            class_indices[id(kind)] = index
        if index >= 0:
            objects[index].append(candidate)
        if count % 100_000 == 99_999 and deadline.check():
            break
    tensors, modules, optimizers = objects
    return tensors, modules, optimizers


def _device(failure: Failure, tensors: list[Any]) -> tuple[str, int | None]:
    """The device to search: a simulated GPU may keep its tensors in host memory."""
    if failure.device is None:
        return "cpu", None
    kinds = {kind for tensor in tensors if (kind := tensor.device.type) not in ("cpu", "meta")}
    return (kinds.pop(), failure.device) if kinds else ("cpu", None)


def _claim(tally: _Tally, reach: TensorSearch, name: str, kind: str, value: object) -> None:
    """Count the tensors of a value, their gradients, and what their graphs keep."""
    direct = tally.claim(name, kind, reach.tensors(value))
    if direct:
        tally.claim(name, "gradient", _gradients(direct))
        tally.claim(name, "graph", reach.saved_tensors(direct))


def _claim_models(tally: _Tally, reach: TensorSearch, named_values: list[tuple[str, Any]], modules: list[Any]) -> None:
    models = [(name, value) for name, value in named_values if reach.kind(value) == "module"]
    inner = {id(each) for module in modules for each in (attributes(module).get("_modules") or {}).values()}
    with_names = {id(value) for _, value in models}
    models += [(type(module).__name__, module) for module in modules if id(module) not in inner | with_names]
    for name, model in models:
        parameters = tally.claim(name, "parameter", reach.parameters(model))
        tally.claim(name, "gradient", _gradients(parameters))


def _claim_optimizers(
    tally: _Tally, reach: TensorSearch, named_values: list[tuple[str, Any]], optimizers: list[Any]
) -> None:
    for optimizer in optimizers:
        name = next(iter([name for name, value in named_values if value is optimizer]), type(optimizer).__name__)
        state = attributes(optimizer).get("state")
        if isinstance(state, dict):
            # The keys of the state are the parameters, which belong to the model.
            tensors = [tensor for values in dict.values(state) for tensor in reach.tensors(values)]
            tally.claim(name, "optimizer", tensors)


def _claim_previous_error(tally: _Tally, reach: TensorSearch, error: BaseException) -> None:
    """Count what the frames of an earlier error hold, if Python still keeps that error."""
    current = {id(each) for each in exception_chain(error)}
    for name in ("last_exc", "last_value"):
        previous = getattr(sys, name, None)
        if isinstance(previous, BaseException) and id(previous) not in current:
            for frame in frames_without_allocator(previous.__traceback__):
                if not _is_global(frame):
                    for value in frame_variables(frame).values():
                        _claim(tally, reach, EARLIER_ERROR, "traceback", value)


def _description(tensor: Any) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _gradients(tensors: Iterable[Any]) -> list[Any]:
    """Gradients of the leaf tensors; reading `.grad` of others warns, as they have none."""
    return [tensor.grad for tensor in tensors if tensor.is_leaf and tensor.grad is not None]


def _is_defined(tensor: Any) -> bool:
    """Whether autograd knows it: PyTorch 2.4 shows Python undefined tensors, which raise when they are asked."""
    try:
        return tensor.is_leaf is not None
    except RuntimeError:
        return False


def _is_global(frame: FrameType) -> bool:
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED


@contextlib.contextmanager
def _without_overrides() -> Iterator[None]:
    """Bypass the user's tensor subclasses and modes: no `__torch_function__` runs in this context."""
    import torch

    with torch._C.DisableTorchFunction():
        yield


def _rows(tally: _Tally, device: int | None) -> Rows:
    rows = sorted((each for each in tally.holders.values() if each.bytes), key=lambda holder: -holder.bytes)
    return HOLDERS.rows(
        {
            "who": [each.name for each in rows],
            "kind": [each.kind for each in rows],
            "device": [-1 if device is None else device] * len(rows),
            "bytes": [each.bytes for each in rows],
            "tensors": [each.tensors for each in rows],
            "largest": [each.largest[1] or None for each in rows],
        }
    )
