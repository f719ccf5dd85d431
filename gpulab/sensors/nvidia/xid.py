"""Xid errors: what the driver of NVIDIA reports of a GPU that failed, read as events of NVML."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

_MOST_EVENTS = 16  # per reading; the rest follows
_TIMEOUT = 10  # NVML's code for "no event within the time"
# Meanings by NVIDIA's list of Xid errors (docs.nvidia.com/deploy/xid-errors).
_MEANINGS = {
    13: "an exception of the graphics engine: often a kernel that accesses memory out of bounds",
    31: "a page fault of the GPU memory: often a kernel that accesses an illegal address",
    43: "a program's channel was stopped after an error of its own",
    45: "a program's channels were cleaned up, after another error or an interrupt",
    48: "an uncorrectable memory error",
    63: "a memory row was remapped, or will be after a reset",
    64: "a memory row could not be remapped",
    74: "an error of an NVLink link",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "an uncorrectable memory error that stopped only the program that it affected",
    95: "an uncorrectable memory error that may affect every program",
    119: "the GPU's system processor (GSP) does not answer",
    120: "an error of the GPU's system processor (GSP)",
}


def xid_text(number: int) -> str:
    """Return the error in words: "Xid 79: the GPU has fallen off the bus"."""
    return f"Xid {number}: {_MEANINGS.get(number, 'see docs.nvidia.com/deploy/xid-errors')}"


class XidReader:
    """Listens for Xid errors of some GPUs. Nothing is raised where the driver has no such events (WSL, vGPU)."""

    def __init__(self, nvml: Any, boards: Mapping[int, Any]) -> None:
        self._nvml, self._set = nvml, None
        self._index_of = {_address(handle): index for index, handle in boards.items()}
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in boards.values():
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except (nvml.NVMLError, AttributeError):
            return
        self._set = events

    def read(self) -> tuple[tuple[int, int], ...]:
        """Return the errors since the last call: index of the GPU, and number."""
        errors: list[tuple[int, int]] = []
        while self._set is not None and len(errors) < _MOST_EVENTS:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError as problem:
                if problem.value != _TIMEOUT:
                    self._set = None  # the driver was shut down; a new reader comes with the next one
                break
            index = self._index_of.get(_address(event.device))
            if index is not None:
                errors.append((index, int(event.eventData)))
        return tuple(errors)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
