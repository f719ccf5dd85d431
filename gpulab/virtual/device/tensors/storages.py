"""Simulated GPU memory behind tensors, allocated with a storage and freed when the last tensor on it dies."""

from __future__ import annotations

import weakref
from typing import Any

from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.memory_fit.allocator import OutOfGpuMemory
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory
from gpulab.virtual.op_log.ops import Phase, Role

_MIB, _GIB = 2**20, 2**30


class StorageMemory:
    """Allocations by PyTorch storage: allocated when a storage is first used, freed when it dies."""

    def __init__(self, memory: SimulatedMemory, recorder: OpRecorder) -> None:
        self.memory = memory
        self._recorder = recorder
        self._keys: dict[int, int] = {}  # allocation key, by the address of PyTorch's storage object
        self._sizes: dict[int, int] = {}
        self._finalizers: dict[int, Any] = {}
        self._dead: list[int] = []  # died, not yet freed
        self._busy = False
        self._next = 0

    def allocate(self, tensor: Any, phase: Phase) -> None:
        """Allocate memory for the storage of a new tensor; raises torch.OutOfMemoryError if none is left."""
        self._free_dead()
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address in self._keys:
            return
        self._next += 1
        key = self._next
        size = storage.nbytes()
        self._allocate(key, size, phase)
        self._keys[address], self._sizes[address] = key, size
        finalizer = weakref.finalize(storage, self._on_death, address)
        finalizer.atexit = False
        self._finalizers[address] = finalizer

    def has_memory(self, address: int) -> bool:
        """Return whether the storage at this address has memory on this GPU."""
        return address in self._keys

    def reallocate(self, tensor: Any, phase: Phase) -> None:
        """Reallocate a storage that has grown: PyTorch allocates the new memory before it frees the old."""
        self._free_dead()
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        old = self._keys.get(address)
        if old is None:
            self.allocate(tensor, phase)
        elif size != self._sizes[address]:
            self._next += 1
            self._allocate(self._next, size, phase)
            self._keys[address], self._sizes[address] = self._next, size
            self._free(old)

    def _allocate(self, key: int, size: int, phase: Phase) -> None:
        self._busy = True
        try:
            self.memory.allocate(key, size, phase)
        except OutOfGpuMemory as full:
            raise _out_of_memory(full) from None
        finally:
            self._busy = False

    def _on_death(self, address: int) -> None:
        # Python's garbage collector may call this at any time, also during an allocation.
        self._recorder.entered()
        self._dead.append(address)
        if not self._busy:
            self._free_dead()
        self._recorder.left()

    def _free_dead(self) -> None:
        while self._dead:
            address = self._dead.pop()
            del self._finalizers[address], self._sizes[address]
            self._free(self._keys.pop(address))

    def _free(self, key: int) -> None:
        self._busy = True
        try:
            self.memory.free(key)
        finally:
            self._busy = False

    def set_role(self, tensor: Any, role: Role) -> None:
        """Set the role of the memory of a tensor."""
        key = self._keys.get(tensor.untyped_storage()._cdata)
        if key is not None:
            self.memory.set_role(key, role)

    def address(self, tensor: Any) -> int:
        """Return the address of a tensor's first element; 0 for a tensor without memory, as in PyTorch."""
        key = self._keys.get(tensor.untyped_storage()._cdata)
        begin = -1 if key is None else self.memory.address(key)
        return 0 if begin < 0 else begin + int(tensor.storage_offset()) * int(tensor.element_size())

    def clear(self) -> None:
        """Stop tracking all storages."""
        for finalizer in self._finalizers.values():
            finalizer.detach()
        self._finalizers.clear()
        self._dead.clear()
        self._keys.clear()
        self._sizes.clear()


def _out_of_memory(full: OutOfGpuMemory) -> Exception:
    import torch

    unallocated = full.reserved_bytes - full.allocated_bytes
    return torch.OutOfMemoryError(
        f"CUDA out of memory. Tried to allocate {_size(full.segment_bytes)}. GPU 0 has a total capacity of "
        f"{_size(full.capacity_bytes)} of which {_size(full.free_bytes)} is free. Including non-PyTorch memory, this "
        f"process has {_size(full.capacity_bytes - full.free_bytes)} memory in use. Of the allocated memory "
        f"{_size(full.allocated_bytes)} is allocated by PyTorch, and {_size(unallocated)} is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _size(size: int) -> str:
    """Format a size as PyTorch's allocator does."""
    if size <= 1024:
        return f"{size} bytes"
    if size <= _MIB:
        return f"{size / 1024:.2f} KiB"
    return f"{size / _MIB:.2f} MiB" if size <= _GIB else f"{size / _GIB:.2f} GiB"
