"""Which CPU tensors the program has pinned. Nothing is pinned here: there is no GPU that would read it."""

from __future__ import annotations

import weakref
from typing import Any


class Pinned:
    """Storages of pinned memory, for as long as they live."""

    def __init__(self) -> None:
        self._deaths: dict[int, Any] = {}

    def add(self, tensor: Any) -> None:
        """This tensor's memory is pinned from now on."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._deaths:
            death = weakref.finalize(storage, self._deaths.pop, storage._cdata, None)
            death.atexit = False
            self._deaths[storage._cdata] = death

    def has(self, tensor: Any) -> bool:
        """Whether this tensor's memory is pinned."""
        return bool(self._deaths) and tensor.untyped_storage()._cdata in self._deaths

    def forget(self) -> None:
        """Follow none any more."""
        for death in list(self._deaths.values()):
            death.detach()
        self._deaths.clear()
