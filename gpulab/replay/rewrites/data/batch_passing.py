"""Cost of passing a batch from a worker to the main process: pickling, shared memory, and a file handle per tensor.

Each tensor travels as a handle of shared memory through a socket of its own; everything else is pickled. The ends of
the ranges are a fast bare-metal machine and a slow virtual one (measured with 1 to 32 tensors and up to 20 MB).
"""

from __future__ import annotations

from gpulab.replay.rewrite import Draw
from gpulab.run import Loader

_BATCH_NS = (100_000.0, 650_000.0)
_TENSOR_NS = (80_000.0, 400_000.0)
_OBJECT_NS = (100.0, 800.0)
_RECEIVED_BYTE_NS = (0.05, 0.33)  # mapping the memory
_SENT_BYTE_NS = (0.3, 1.6)  # copying into new pages of shared memory


def has_contents(setup: Loader | None) -> bool:
    """Whether the parts of a batch were recorded."""
    return setup is not None and setup.batch_tensors is not None


def receiving_ns(setup: Loader, draw: Draw) -> float:
    """Return the time of the main process per batch that is ready."""
    return _passing_ns(setup, draw, _RECEIVED_BYTE_NS)


def sending_ns(setup: Loader, draw: Draw) -> float:
    """Return the time of the worker per batch, after loading it."""
    return _passing_ns(setup, draw, _SENT_BYTE_NS)


def sending_range_ns(setup: Loader) -> tuple[float, float]:
    """Return that time on a fast and on a slow machine."""
    return _range_ns(setup, _SENT_BYTE_NS)


def _passing_ns(setup: Loader, draw: Draw, byte_ns: tuple[float, float]) -> float:
    # One draw for all parts: the machine is fast or slow at system calls.
    return draw.ratio("passing batches", *_range_ns(setup, byte_ns))


def _range_ns(setup: Loader, byte_ns: tuple[float, float]) -> tuple[float, float]:
    parts = ((1, _BATCH_NS), (setup.batch_tensors, _TENSOR_NS), (setup.batch_objects, _OBJECT_NS))
    low, high = (
        sum((count or 0) * ends[end] for count, ends in parts) + (setup.batch_bytes or 0) * byte_ns[end]
        for end in (0, 1)
    )
    return low, high
