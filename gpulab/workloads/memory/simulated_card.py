"""A GPU's memory on a machine without one: so many bytes, and an error in PyTorch's words where they do not suffice.

What is counted is real: every storage that operators make inside the card is, for as long as anything keeps it alive,
be it a variable or the autograd graph. What is left out: the allocator's rounding, its cache, and workspaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode


def memory_card(capacity_bytes: int) -> TorchDispatchMode:
    """A mode: the tensors that are made inside it must fit into so many bytes together."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class MemoryCard(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.live: dict[int, tuple[Any, int]] = {}  # by storage: a weak reference, and its bytes

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            before = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if torch.is_tensor(each)}
            stored = [each.untyped_storage() for each in tree_leaves(made) if torch.is_tensor(each)]
            refusal = self._hold([storage for storage in stored if storage._cdata not in before])
            if refusal is not None:
                del made, stored  # what was refused was never there, and the error must not keep it
                raise torch.OutOfMemoryError(refusal)
            return made

        def _hold(self, stored: list[Any]) -> str | None:
            self.live = {key: held for key, held in self.live.items() if not held[0].expired()}
            fresh = {storage._cdata: storage for storage in stored if storage._cdata not in self.live}
            used, wanted = sum(size for _, size in self.live.values()), sum(each.nbytes() for each in fresh.values())
            if used + wanted > capacity_bytes:
                return _refused(wanted, used, capacity_bytes)
            self.live |= {key: (StorageWeakRef(storage), storage.nbytes()) for key, storage in fresh.items()}
            return None

    return MemoryCard()


def _refused(wanted: int, used: int, capacity: int) -> str:
    """The error as PyTorch words it."""
    return (
        f"CUDA out of memory. Tried to allocate {_size(wanted)}. GPU 0 has a total capacity of {_size(capacity)} "
        f"of which {_size(capacity - used)} is free. Including non-PyTorch memory, this process has {_size(used)} "
        f"memory in use. Of the allocated memory {_size(used)} is allocated by PyTorch, and 0 bytes is reserved by "
        "PyTorch but unallocated. (simulated)"
    )


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"
