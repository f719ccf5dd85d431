"""Simulated GPU memory: a capacity in bytes, and PyTorch's out-of-memory error when it is exceeded.

It counts real storages: those created by operators inside the context, for as long as anything keeps them alive, such
as a variable or the autograd graph. It ignores the allocator's rounding, its cache, and workspaces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode


def limited_memory(capacity_bytes: int) -> TorchDispatchMode:
    """A context in which all new tensors together must fit into this many bytes."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class MemoryCard(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.live: dict[int, tuple[Any, int]] = {}  # by storage: a weak reference, and its bytes

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            before = {each.untyped_storage()._cdata for each in tree_leaves((args, kwargs)) if torch.is_tensor(each)}
            stored = [each.untyped_storage() for each in tree_leaves(result) if torch.is_tensor(each)]
            error = self._allocate([storage for storage in stored if storage._cdata not in before])
            if error is not None:
                del result, stored  # free the refused tensors; the error must not keep them alive
                raise torch.OutOfMemoryError(error)
            return result

        def _allocate(self, stored: list[Any]) -> str | None:
            self.live = {key: entry for key, entry in self.live.items() if not entry[0].expired()}
            fresh = {storage._cdata: storage for storage in stored if storage._cdata not in self.live}
            used = sum(size for _, size in self.live.values())
            requested = sum(storage.nbytes() for storage in fresh.values())
            if used + requested > capacity_bytes:
                return _oom_message(requested, used, capacity_bytes)
            self.live |= {key: (StorageWeakRef(storage), storage.nbytes()) for key, storage in fresh.items()}
            return None

    return MemoryCard()


def _oom_message(requested: int, used: int, capacity: int) -> str:
    """Return the error message as PyTorch words it."""
    return (
        f"CUDA out of memory. Tried to allocate {_size(requested)}. GPU 0 has a total capacity of {_size(capacity)} "
        f"of which {_size(capacity - used)} is free. Including non-PyTorch memory, this process has {_size(used)} "
        f"memory in use. Of the allocated memory {_size(used)} is allocated by PyTorch, and 0 bytes is reserved by "
        "PyTorch but unallocated. (simulated)"
    )


def _size(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"
