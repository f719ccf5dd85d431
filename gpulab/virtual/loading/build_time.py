"""Measure the time to build a batch, in the main process or in the worker, which sends it with the batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpulab.virtual.host.core_waits import CoreWaits
from gpulab.virtual.loading.batch_tensors import tensors_of


class Stopwatch:
    """Wall-clock time of the calling thread, without the time it waited for a core."""

    def __init__(self) -> None:
        self._waits = CoreWaits()

    def now_ns(self) -> int:
        """Return the time since an arbitrary start."""
        return time.perf_counter_ns() - self._waits.waited_ns()

    def close(self) -> None:
        """Release the resources."""
        self._waits.close()


@dataclass(frozen=True)
class BuiltBatch:
    """A batch sent by a worker, with the time to build it there."""

    batch: Any
    built_ns: int
    built_cpu_ns: int  # of the whole worker process, because decoding libraries start their own threads
    ready_ns: int  # when the worker's dataset was ready, by time.monotonic_ns; 0 except for its first batch


@dataclass(frozen=True)
class TimedWorkerInit:
    """Replacement of a loader's `worker_init_fn`: makes the worker measure its batches, then calls the user's function.

    It can be pickled, so that it reaches workers with every start method.
    """

    init: Callable[[int], Any] | None

    def __call__(self, worker: int) -> None:
        """Run in the worker, before its first batch."""
        __tracebackhide__ = True
        measure_batches()
        if self.init is not None:
            self.init(worker)


def measure_batches() -> None:
    """Make this worker process send every batch as a `Built`. Not undone: the worker ends with its loader."""
    from torch.utils.data import _DatasetKind, get_worker_info

    kind: Any = _DatasetKind
    original = kind.create_fetcher
    stopwatch = Stopwatch()

    def create_fetcher(*settings: Any) -> Any:
        fetcher, info = original(*settings), get_worker_info()
        if info is not None and settings[1] is info.dataset:  # not a loader inside the dataset
            fetcher.fetch = _measure(fetcher.fetch, stopwatch)
        return fetcher

    kind.create_fetcher = staticmethod(create_fetcher)


def _measure(fetch: Callable[[Any], Any], stopwatch: Stopwatch) -> Callable[[Any], BuiltBatch]:
    ready_ns = time.monotonic_ns()

    def measured(index: Any) -> BuiltBatch:
        __tracebackhide__ = True
        nonlocal ready_ns
        start_ns, start_cpu_ns = stopwatch.now_ns(), time.process_time_ns()
        batch = _without_gpu(fetch, index)
        cpu_ns = time.process_time_ns() - start_cpu_ns
        build_ns = max(0, stopwatch.now_ns() - start_ns)
        first_ready_ns, ready_ns = ready_ns, 0
        return BuiltBatch(batch, build_ns, cpu_ns, first_ready_ns)

    return measured


# PyTorch's error in a forked worker that uses the GPU, and its errors here, without a real GPU.
FORK_ERROR = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method"
)
_NO_GPU_ERRORS = ("'CUDA' backend", "device not recognized: cuda")


def _without_gpu(fetch: Callable[[Any], Any], index: Any) -> Any:
    """Build a batch in a worker. Raises the error of a real GPU if it uses CUDA in a forked worker."""
    __tracebackhide__ = True
    try:
        batch = fetch(index)
    except (NotImplementedError, RuntimeError) as error:
        if any(text in str(error) for text in _NO_GPU_ERRORS):
            raise RuntimeError(FORK_ERROR) from error
        raise
    if any(tensor.device.type == "cuda" for tensor in tensors_of(batch)[0]):
        raise RuntimeError(FORK_ERROR)
    return batch
