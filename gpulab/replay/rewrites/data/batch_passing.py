"""Cost of passing a batch from a worker to the main process: pickling, shared memory, and a file handle per tensor.

Each tensor travels as a handle of shared memory through a socket of its own; everything else is pickled. The upper
ends of the ranges were measured on a virtual machine with two cores (1 to 32 tensors, 20 MB, 10,000 strings). The lower
ends are assumed for a bare-metal machine: system calls take a fraction of that there.
"""

from __future__ import annotations

from gpulab.analysis.data.loader import LoadingCost
from gpulab.replay.rewrite import Draw

_DRAW = "passing batches"  # one draw for all parts: a machine is fast or slow at system calls

_BATCH_NS = (100_000.0, 650_000.0)
_TENSOR_NS = (80_000.0, 400_000.0)
_RECEIVED_OBJECT_NS, _SENT_OBJECT_NS = (100.0, 800.0), (100.0, 1_600.0)
_RECEIVED_BYTE_NS = (0.05, 0.33)  # mapping the memory
_SENT_BYTE_NS = (0.3, 1.6)  # copying into new pages of shared memory
_Range = tuple[float, float]


def receiving_ns(loading: LoadingCost, draw: Draw) -> float | None:
    """Return the time per step that the main process takes for batches that are ready; None if unknown."""
    range_ns = _range_ns(loading, _RECEIVED_OBJECT_NS, _RECEIVED_BYTE_NS)
    return None if range_ns is None else draw.ratio(_DRAW, *range_ns)


def added_sending_ns(loading: LoadingCost, draw: Draw) -> float:
    """Return the time per step that sending takes the workers; 0 if unknown, or if the measured time includes it."""
    range_ns = sending_range_ns(loading)
    return 0.0 if range_ns is None or loading.workers else draw.ratio(_DRAW, *range_ns)


def added_receiving_ns(loading: LoadingCost, draw: Draw) -> float:
    """Return the time that receiving adds to a step; 0 if unknown, or if the measured time includes it."""
    return 0.0 if loading.workers else receiving_ns(loading, draw) or 0.0


def sending_range_ns(loading: LoadingCost) -> _Range | None:
    """Return the time per step that sending takes the workers, on a fast and on a slow machine; None if unknown."""
    return _range_ns(loading, _SENT_OBJECT_NS, _SENT_BYTE_NS)


def _range_ns(loading: LoadingCost, object_ns: _Range, byte_ns: _Range) -> _Range | None:
    setup = loading.loader  # None, or without counts: it is not known what a batch consists of
    if setup is None or setup.batch_tensors is None:
        return None
    parts = ((1, _BATCH_NS), (setup.batch_tensors, _TENSOR_NS), (setup.batch_objects, object_ns))
    low, high = (
        sum((count or 0) * ends[end] for count, ends in parts) + (setup.batch_bytes or 0) * byte_ns[end]
        for end in (0, 1)
    )
    return loading.batches * low, loading.batches * high
