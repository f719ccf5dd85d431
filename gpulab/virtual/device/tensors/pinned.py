"""Track which CPU tensors the program has pinned. No memory is really pinned: there is no GPU to read it."""

from __future__ import annotations

import weakref
from typing import Any


class PinnedStorages:
    """The pinned storages, until they are freed."""

    def __init__(self) -> None:
        self._finalizers: dict[int, Any] = {}

    def add(self, tensor: Any) -> None:
        """Mark this tensor's memory as pinned."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._finalizers:
            finalizer = weakref.finalize(storage, self._finalizers.pop, storage._cdata, None)
            finalizer.atexit = False
            self._finalizers[storage._cdata] = finalizer

    def has(self, tensor: Any) -> bool:
        """Return whether this tensor's memory is pinned."""
        return bool(self._finalizers) and tensor.untyped_storage()._cdata in self._finalizers

    def clear(self) -> None:
        """Stop tracking all storages."""
        for finalizer in list(self._finalizers.values()):
            finalizer.detach()
        self._finalizers.clear()
