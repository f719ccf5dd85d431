"""How long a batch takes to build: measured in the main process, or inside the worker and sent along with it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpulab.virtual.host.core_waits import CoreWaits
from gpulab.virtual.loading.batch_size import tensors_of


class Stopwatch:
    """Time of the thread that asks, without the time it was ready to run and waited for a core."""

    def __init__(self) -> None:
        self._waits = CoreWaits()

    def now_ns(self) -> int:
        """Time that passed, from an arbitrary beginning."""
        return time.perf_counter_ns() - self._waits.waited_ns()

    def close(self) -> None:
        """Give the file back."""
        self._waits.close()


@dataclass(frozen=True)
class Built:
    """A batch on its way from a worker, and what building it took there."""

    batch: Any
    built_ns: int
    built_cpu_ns: int  # of the whole worker: libraries that decode start threads of their own
    ready_ns: int  # when this worker's dataset was ready to be read, by time.monotonic_ns; of its first batch, else 0


@dataclass(frozen=True)
class Timed:
    """In place of a loader's `worker_init_fn`: has this worker measure its batches, then does what the user's does.

    A plain value, so that it reaches workers however they are started.
    """

    init: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        """In the worker, before its first batch."""
        __tracebackhide__ = True
        measure_batches()
        if self.init is not None:
            self.init(worker)


def measure_batches() -> None:
    """From now on every batch of this process leaves it as `Built`; for a worker, which lives and dies with it."""
    from torch.utils.data import _DatasetKind, get_worker_info

    kind: Any = _DatasetKind
    original = kind.create_fetcher
    watch = Stopwatch()

    def create_fetcher(*settings: Any) -> Any:
        fetcher, info = original(*settings), get_worker_info()
        if info is not None and settings[1] is info.dataset:  # and no loader that the dataset itself has
            fetcher.fetch = _measured(fetcher.fetch, watch)
        return fetcher

    kind.create_fetcher = staticmethod(create_fetcher)


def _measured(fetch: Callable[[Any], Any], watch: Stopwatch) -> Callable[[Any], Built]:
    ready_ns = time.monotonic_ns()

    def measured(index: Any) -> Built:
        __tracebackhide__ = True
        nonlocal ready_ns
        start_ns, start_cpu_ns = watch.now_ns(), time.process_time_ns()
        batch = _without_gpu(fetch, index)
        cpu_ns = time.process_time_ns() - start_cpu_ns
        took_ns = max(0, watch.now_ns() - start_ns)
        was_ready_ns, ready_ns = ready_ns, 0
        return Built(batch, took_ns, cpu_ns, was_ready_ns)

    return measured


# What PyTorch says in a forked worker that touches the GPU, and what it says here, where there is none behind it.
FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)
_SAID_HERE = ("'CUDA' backend", "device not recognized: cuda")


def _without_gpu(fetch: Callable[[Any], Any], index: Any) -> Any:
    """A worker's batch; where it touches the GPU this raises what a real one would: it could not be sent, either."""
    __tracebackhide__ = True
    try:
        batch = fetch(index)
    except (NotImplementedError, RuntimeError) as error:
        if any(words in str(error) for words in _SAID_HERE):
            raise RuntimeError(FORKED) from error
        raise
    if any(tensor.device.type == "cuda" for tensor in tensors_of(batch)[0]):
        raise RuntimeError(FORKED)
    return batch
