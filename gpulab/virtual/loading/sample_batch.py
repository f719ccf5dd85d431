"""Time one batch in the main process, without side effects, for loaders whose workers do not report build times."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpulab.virtual.loading.build_time import Stopwatch

UNKNOWN_BUILD_TIME = "time to build a batch (its workers started earlier or in a custom way, so they do not report it)"
SAMPLE_BUILD_TIME = "the time of one batch built in the main process"


def time_one_batch(iterator: Any, stopwatch: Stopwatch) -> tuple[int, int] | None:
    """Return wall time and CPU time of one batch built here, in ns.

    None for an iterable dataset, which would lose the batch, and if building it fails.
    """
    from torch.utils.data import _DatasetKind

    kinds: Any = _DatasetKind
    if iterator._dataset_kind != kinds.Map:
        return None
    settings = iterator._dataset, iterator._auto_collation, iterator._collate_fn, iterator._drop_last
    try:
        with _rng_state_restored(iterator):
            fetcher = kinds.create_fetcher(iterator._dataset_kind, *settings)
            index = next(iter(iterator._index_sampler))
            start_ns, start_cpu_ns = stopwatch.now_ns(), time.thread_time_ns()
            fetcher.fetch(index)
            return max(0, stopwatch.now_ns() - start_ns), time.thread_time_ns() - start_cpu_ns
    except Exception:  # the user's dataset may fail in the main process; a real error shows up in its workers
        return None


@contextmanager
def _rng_state_restored(iterator: Any) -> Iterator[None]:
    """Restore all random number generators after the block."""
    import torch

    sampler = iterator._index_sampler
    generators = [getattr(each, "generator", None) for each in (sampler, getattr(sampler, "sampler", None))]
    states = [(generator, generator.get_state()) for generator in generators if generator is not None]
    torch_state, python_state = torch.random.get_rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
        torch.random.set_rng_state(torch_state)
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
