"""Who holds memory when it runs out: every tensor alive, once, counted for the first who would have to let it go.

In order: models (parameters, gradients), optimizers, the user's variables, values of earlier cells, the failed step
itself, an earlier error; then what no name was found for. What the autograd graph of a holder keeps is counted apart.
Nothing is kept alive, no code of the user's is called, and a look takes two seconds at most.
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

from gpulab.capture.memory.out_of_memory import chain_of, frames_of, outside
from gpulab.capture.memory.reachable_tensors import Deadline, Reach, attributes
from gpulab.capture.user_names import variables
from gpulab.rows import Rows
from gpulab.run import Failure, Gap
from gpulab.sensors.host.frames import users_frames
from gpulab.tables import HOLDERS
from gpulab.wording import duration

LIMIT_S = 2.0
UNDER_WAY = "the step under way"
EARLIER = "sys.last_traceback"
ELSEWHERE = "objects without a name"
UNSEEN = "PyTorch's own C++ code"
_CACHED = re.compile(r"_(?:_{0,2}|\d+)$")  # _, __, ___ and _12: what IPython keeps of earlier cells


@dataclass
class _Holder:
    """What one name holds that nobody before it did."""

    who: str
    kind: str
    bytes: int = 0
    tensors: int = 0
    largest: tuple[int, str] = (0, "")


Counts = Callable[[int], bool]  # whether what a storage's address tells of is memory of the device


def any_storage(address: int) -> bool:
    """All storages are memory of the device."""
    return True


@dataclass
class _Tally:
    """Tensors on one device, each storage once."""

    device: str  # "cuda", "cpu"
    index: int | None
    counts: Counts = any_storage
    storages: set[int] = field(default_factory=set)
    holders: dict[tuple[str, str], _Holder] = field(default_factory=dict)

    def claim(self, who: str, kind: str, tensors: Iterable[Any]) -> list[Any]:
        """Count for this holder what none before it holds; gives all of its tensors on any device."""
        given = list(tensors)
        for tensor in given:
            with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse, fake: no storage of their own
                self._count(who, kind, tensor)
        return given

    def _count(self, who: str, kind: str, tensor: Any) -> None:
        where = tensor.device
        if where.type != self.device or (self.index is not None and where.index not in (None, self.index)):
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self.storages or not self.counts(storage._cdata):
            return
        self.add(who, kind, storage._cdata, storage.nbytes(), partial(_description, tensor))

    def add(self, who: str, kind: str, address: int, size: int, description: Callable[[], str]) -> None:
        """Count one tensor, whose storage is at this address, for this holder."""
        self.storages.add(address)
        holder = self.holders.setdefault((who, kind), _Holder(who, kind))
        holder.bytes += size
        holder.tensors += 1
        if size > holder.largest[0]:
            holder.largest = size, description()


class EarlierError:
    """What the error of an earlier cell holds, noted before the recorded cell replaces that error by its own."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, int, str, int | None, str]] = []
        trace = getattr(sys, "last_traceback", None)
        if trace is not None and "torch" in sys.modules:
            with _at_rest():
                self._note(trace)

    def _note(self, trace: TracebackType) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        reach = Reach(Deadline(LIMIT_S / 10))
        known: set[int] = set()
        for frame in outside(trace):
            if not _is_global(frame):
                direct = [tensor for value in variables(frame).values() for tensor in reach.tensors(value)]
                for tensor in (*direct, *reach.saved(direct)):
                    with contextlib.suppress(RuntimeError, NotImplementedError):
                        storage = tensor.untyped_storage()
                        if storage._cdata not in known:
                            known.add(storage._cdata)
                            where = tensor.device
                            held = StorageWeakRef(storage), storage.nbytes(), where.type, where.index
                            self._held.append((*held, _description(tensor)))

    def count(self, tally: _Tally) -> None:
        """What nobody else holds. Some of it may be gone by now: it went when the recorded cell's own error came."""
        for reference, size, device, index, what in self._held:
            here = device == tally.device and (tally.index is None or index in (None, tally.index))
            new = reference.cdata not in tally.storages or reference.expired()
            if here and new and tally.counts(reference.cdata):
                tally.add(EARLIER, "traceback", reference.cdata, size, partial(str, what))


def holders(
    failure: Failure,
    error: BaseException,
    earlier: EarlierError | None = None,
    limit_s: float = LIMIT_S,
    counts: Counts = any_storage,
) -> tuple[Rows, tuple[Gap, ...]]:
    """Who holds memory of the device that ran out, as rows of tables.HOLDERS, and what was not looked at."""
    if "torch" not in sys.modules:
        return HOLDERS.empty(), ()
    deadline = Deadline(limit_s)
    with _at_rest():
        tally = _tallied(failure, error, earlier, deadline, counts)
    seen_bytes = sum(holder.bytes for holder in tally.holders.values())
    if failure.allocated_bytes is not None and failure.allocated_bytes > seen_bytes and not deadline.passed:
        unseen = _Holder(UNSEEN, "other", failure.allocated_bytes - seen_bytes, -1)
        tally.holders[UNSEEN, "other"] = unseen
    gap = Gap(
        what="some of those who hold memory",
        why=f"there are so many objects that looking at them took longer than {duration(1e9 * limit_s)}",
        fix="keep large collections out of the notebook's variables, or look with torch.cuda.memory_snapshot()",
    )
    return _rows(tally, failure.device), (gap,) if deadline.passed else ()


def _tallied(
    failure: Failure, error: BaseException, earlier: EarlierError | None, deadline: Deadline, counts: Counts
) -> _Tally:
    tensors, modules, optimizers = _alive(deadline)
    tally = _Tally(*_device(failure, tensors), counts)
    main = sys.modules["__main__"].__dict__
    kept = main.get("Out") if isinstance(main.get("Out"), dict) else {}
    reach = Reach(deadline, closed=(main, kept, sys.modules))
    frames = [frame for frame in frames_of(error) if not _is_global(frame)]
    spaces = [(frame, variables(frame)) for frame in frames]
    # From the outside in: who called holds on longer than who was called.
    mine = [(name, "", value) for name, value in list(main.items()) if not name.startswith("_")]
    for frame, space in spaces:
        if _is_users(frame):
            mine += [(name, f" in {frame.f_code.co_name}()", value) for name, value in space.items()]
    named = [(name, value) for name, _, value in mine]
    _claim_models(tally, reach, named, modules)
    _claim_optimizers(tally, reach, named, optimizers)
    for name, where, value in mine:
        if value is not kept and name not in ("In", "Out"):
            _claim(tally, reach, f"{name}{where}", "variable", value)
    for number, value in list(kept.items()) if isinstance(kept, dict) else ():
        _claim(tally, reach, f"Out[{number}]", "output", value)
    for name, value in list(main.items()):
        if _CACHED.match(name):
            _claim(tally, reach, name, "output", value)
    for _, space in spaces:
        for value in space.values():
            _claim(tally, reach, UNDER_WAY, "variable", value)
    _claim_earlier(tally, reach, error)
    if earlier is not None:
        earlier.count(tally)
    tally.claim(ELSEWHERE, "other", tensors)
    tally.claim(ELSEWHERE, "gradient", [each for one in tensors if (each := _gradient(one)) is not None])
    tally.claim(ELSEWHERE, "graph", reach.saved(tensors))
    return tally


def _alive(deadline: Deadline) -> tuple[list[Any], list[Any], list[Any]]:
    """Every tensor, module and optimizer that Python knows of."""
    import torch

    wanted = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
    found: tuple[list[Any], ...] = ([], [], [])
    kinds: dict[int, int] = {}
    for count, each in enumerate(gc.get_objects()):
        kind = type(each)
        which = kinds.get(id(kind))
        if which is None:
            which = kinds[id(kind)] = next((n for n, known in enumerate(wanted) if issubclass(kind, known)), -1)
        if which >= 0:
            found[which].append(each)
        if count % 100_000 == 99_999 and deadline.met():
            break
    tensors, modules, optimizers = found
    return tensors, modules, optimizers


def _device(failure: Failure, tensors: list[Any]) -> tuple[str, int | None]:
    """The device to look at: a simulated GPU may keep its tensors in host memory."""
    if failure.device is None:
        return "cpu", None
    kinds = {kind for tensor in tensors if (kind := tensor.device.type) not in ("cpu", "meta")}
    return (kinds.pop(), failure.device) if kinds else ("cpu", None)


def _claim(tally: _Tally, reach: Reach, who: str, kind: str, value: object) -> None:
    """A value, and what its graphs keep."""
    direct = tally.claim(who, kind, reach.tensors(value))
    if direct:
        tally.claim(who, "gradient", [each for tensor in direct if (each := _gradient(tensor)) is not None])
        tally.claim(who, "graph", reach.saved(direct))


def _claim_models(tally: _Tally, reach: Reach, named: list[tuple[str, Any]], modules: list[Any]) -> None:
    models = [(name, value) for name, value in named if reach.kind(value) == "module"]
    inner = {id(each) for module in modules for each in (attributes(module).get("_modules") or {}).values()}
    known = {id(value) for _, value in models}
    models += [(type(each).__name__, each) for each in modules if id(each) not in inner | known]
    for name, model in models:
        parameters = tally.claim(name, "parameter", reach.parameters(model))
        tally.claim(name, "gradient", [each for one in parameters if (each := _gradient(one)) is not None])


def _claim_optimizers(tally: _Tally, reach: Reach, named: list[tuple[str, Any]], optimizers: list[Any]) -> None:
    for optimizer in optimizers:
        name = next((name for name, value in named if value is optimizer), type(optimizer).__name__)
        state = attributes(optimizer).get("state")
        if isinstance(state, dict):
            # Its keys are the parameters, which are the model's.
            tally.claim(name, "optimizer", [each for held in dict.values(state) for each in reach.tensors(held)])


def _claim_earlier(tally: _Tally, reach: Reach, error: BaseException) -> None:
    """An earlier error that is still kept, with all that its frames hold."""
    now = {id(each) for each in chain_of(error)}
    for name in ("last_exc", "last_value"):
        kept = getattr(sys, name, None)
        if isinstance(kept, BaseException) and id(kept) not in now:
            for frame in outside(kept.__traceback__):
                if not _is_global(frame):
                    for value in variables(frame).values():
                        _claim(tally, reach, EARLIER, "traceback", value)


def _description(tensor: Any) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _gradient(tensor: Any) -> Any:
    return tensor.grad if tensor.is_leaf else None  # asking others warns, as they have none


def _is_global(frame: FrameType) -> bool:
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED


def _is_users(frame: FrameType) -> bool:
    return next(users_frames(frame), None) is frame


@contextlib.contextmanager
def _at_rest() -> Iterator[None]:
    """Tensors answer for themselves here, without the modes and subclasses of the user's."""
    import torch

    with torch._C.DisableTorchFunction():
        yield


def _rows(tally: _Tally, device: int | None) -> Rows:
    found = sorted((each for each in tally.holders.values() if each.bytes), key=lambda each: -each.bytes)
    return HOLDERS.rows(
        {
            "who": [each.who for each in found],
            "kind": [each.kind for each in found],
            "device": [-1 if device is None else device] * len(found),
            "bytes": [each.bytes for each in found],
            "tensors": [each.tensors for each in found],
            "largest": [each.largest[1] or None for each in found],
        }
    )
