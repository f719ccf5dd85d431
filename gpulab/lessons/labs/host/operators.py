"""What a piece of code has PyTorch do, told operator by operator while it runs: the same on every machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

ALLOCATES = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # and computes nothing
BOOKKEEPING = ("_record_function_enter_new", "_record_function_exit", "lift_fresh", "detach")


@dataclass(frozen=True, slots=True)
class Called:
    """One operator, as PyTorch's dispatcher handed it out, and what came of it."""

    operator: Any  # torch._ops.OpOverload, such as aten.add.Tensor
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """Without namespace and overload, as "add_"."""
        return str(self.operator.overloadpacket.__name__)

    @property
    def schema(self) -> str:
        """As profilers name it: "aten::add_"."""
        return str(self.operator._schema.name)

    @property
    def is_work(self) -> bool:
        """Whether it is something for a device to do: views, bare allocations and PyTorch's bookkeeping are not."""
        return not self.operator.is_view and self.name not in ALLOCATES and self.name not in BOOKKEEPING


@contextmanager
def watching(told: Callable[[Called], object]) -> Iterator[None]:
    """Tell of each operator that is called within, after it ran. Nothing of it is kept here."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            told(Called(func, args, kwargs or {}, result))
            return result

    with Watch():
        yield


def counts(code: Callable[[], object]) -> Counter[str]:
    """How often each operator is called while `code` runs, by names as "aten.add"; bookkeeping is counted too."""
    seen: Counter[str] = Counter()
    with watching(lambda called: seen.update((str(called.operator.overloadpacket),))):
        code()
    return seen


def saved(run: Callable[[], object], model: nn.Module | None = None) -> list[Tensor]:
    """What running this keeps for a backward pass: one tensor of each storage, and none that a model's weights lie in.

    It tells on any device, also on "meta", where tensors have sizes and no memory.
    """
    import torch

    seen = {each.untyped_storage()._cdata for each in (model.parameters() if model is not None else ())}
    kept: list[Tensor] = []  # held, so that no other storage takes an address

    def pack(tensor: Tensor) -> Tensor:
        key = tensor.untyped_storage()._cdata
        if key not in seen:
            seen.add(key)
            kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    del result
    return kept
