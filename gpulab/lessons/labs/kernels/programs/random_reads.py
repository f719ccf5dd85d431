"""The time of a random read on this CPU, by the size of the data: caches, and then memory."""

from __future__ import annotations

import time

import numpy as np

_READS = 1 << 19  # per measurement
_REPEATS = 5


def random_read_ns(data_bytes: int, *, repeats: int = _REPEATS) -> float:
    """Return the shortest time of reading one float32 at a random place of an array of this size, in nanoseconds."""
    data = np.ones(data_bytes // 4, np.float32)  # np.zeros would map all pages to one page of zeros, which is cached
    places = np.random.default_rng(0).integers(0, len(data), _READS)
    out = np.empty(_READS, np.float32)
    durations_ns = []
    for _ in range(repeats + 1):  # the first one fills the caches
        begin_ns = time.perf_counter_ns()
        np.take(data, places, out=out, mode="clip")
        durations_ns.append(time.perf_counter_ns() - begin_ns)
    return min(durations_ns[1:]) / _READS  # other programs can only make it longer
