"""Observe the operators that code dispatches, one by one while it runs: the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

ALLOCATION_OPS = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
)  # allocate, and compute nothing
BOOKKEEPING_OPS = ("_record_function_enter_new", "_record_function_exit", "lift_fresh", "detach")


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator call of PyTorch's dispatcher, with its arguments and its result."""

    operator: Any  # torch._ops.OpOverload, such as aten.add.Tensor
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """The name without namespace and overload, such as "add_"."""
        return str(self.operator.overloadpacket.__name__)

    @property
    def schema(self) -> str:
        """The name in profiles: "aten::add_"."""
        return str(self.operator._schema.name)

    @property
    def is_work(self) -> bool:
        """Whether the operator computes on the device: views, allocations and bookkeeping do not."""
        return not self.operator.is_view and self.name not in ALLOCATION_OPS and self.name not in BOOKKEEPING_OPS


@contextmanager
def observe_operators(on_call: Callable[[OperatorCall], object]) -> Iterator[None]:
    """Call `on_call` after each operator that runs in this block; keeps no reference to its tensors."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            on_call(OperatorCall(func, args, kwargs or {}, result))
            return result

    with Watch():
        yield


def count_operators(code: Callable[[], object]) -> Counter[str]:
    """Count the operator calls of `code` by names such as "aten.add", bookkeeping included."""
    calls: Counter[str] = Counter()
    with observe_operators(lambda call: calls.update((str(call.operator.overloadpacket),))):
        code()
    return calls


def saved_tensors(run: Callable[[], object], model: nn.Module | None = None) -> list[Tensor]:
    """Return the tensors that `run` saves for a backward pass: one per storage, without the weights of `model`.

    Works on any device, also on "meta", where tensors have sizes and no memory.
    """
    import torch

    known_storages = {each.untyped_storage()._cdata for each in (model.parameters() if model is not None else ())}
    tensors: list[Tensor] = []  # references keep the storages alive, so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage()._cdata
        if key not in known_storages:
            known_storages.add(key)
            tensors.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return tensors
