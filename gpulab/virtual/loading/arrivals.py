"""Arrival times of batches on virtual time: DataLoader workers build them in turn and prefetch.

The steady state of the same queue is in replay.workers; contention between workers is in replay.rewrites.data.loading.
"""

from __future__ import annotations

from collections import deque

from gpulab.analysis.data.prefetch_bias import DEFAULT_PREFETCH_FACTOR
from gpulab.replay.rewrites.data.loading import HANDOVER_NS_PER_BYTE, MIN_HANDOVER_NS, WORKER_SLOWDOWN
from gpulab.virtual.op_log.ops import BatchFetch


class BatchArrivals:
    """Batch arrivals of one epoch, in order.

    The queue works as in PyTorch: worker k mod N builds batch k, one batch at a time. It receives the indices when
    batch k - prefetch_factor * N is taken, or at the start of the epoch. Batches are taken in order.
    The main thread keeps `main_share` cores busy; workers that compute share the other cores.
    """

    def __init__(
        self,
        workers: int,
        prefetch_factor: int | None = DEFAULT_PREFETCH_FACTOR,
        cores: float | None = None,
        main_share: float = 1.0,
        crowd: float = sum(WORKER_SLOWDOWN) / 2,
    ) -> None:
        self.workers, self._cores = workers, cores
        self._main_share, self._crowd = main_share, crowd
        ahead = workers * (prefetch_factor or DEFAULT_PREFETCH_FACTOR)
        self._free_ns: deque[int] = deque(maxlen=max(1, workers))  # when each worker is done; the next worker first
        self._taken_ns: deque[int] = deque(maxlen=max(1, ahead))
        self._epoch_start_ns: int | None = None

    def arrival_ns(self, now_ns: int, built_ns: int, built_cpu_ns: int, starting_ns: int = 0) -> int:
        """Return the arrival time of the batch requested now.

        `starting_ns` is the part of `built_ns` that starting the epoch took; all workers wait for it.
        """
        if not self.workers:
            return now_ns + built_ns
        if self._epoch_start_ns is None:
            self._epoch_start_ns = now_ns + starting_ns
        free_ns = self._free_ns[0] if len(self._free_ns) == self._free_ns.maxlen else self._epoch_start_ns
        requested_ns = self._taken_ns[0] if len(self._taken_ns) == self._taken_ns.maxlen else self._epoch_start_ns
        ready_ns = max(free_ns, requested_ns) + self.contended_build_ns(built_ns - starting_ns, built_cpu_ns)
        self._free_ns.append(ready_ns)
        arrival_ns = max(now_ns, ready_ns, self._taken_ns[-1] if self._taken_ns else 0)
        self._taken_ns.append(arrival_ns)
        return arrival_ns

    def continues_ns(self, now_ns: int, fetch: BatchFetch) -> int:
        """Return when the program continues after it requests a batch now; also for the end of the epoch."""
        if not fetch.yielded:
            return now_ns + fetch.build_ns
        arrival_ns = self.arrival_ns(now_ns, fetch.build_ns, fetch.build_cpu_ns, fetch.epoch_start_ns)
        return arrival_ns + (handover_ns(fetch.bytes) if self.workers else 0)

    def contended_build_ns(self, built_ns: int, built_cpu_ns: int) -> int:
        """Return the build time of a batch while all workers are busy; a single worker needs `built_ns`.

        All workers together cannot use more cores than the main thread leaves; it takes what it needs, but no more
        than its equal share. Below that limit workers share caches and clocks, which slows them down by 0.1 to 0.4
        times workers per core.
        """
        if self._cores is None or built_ns <= 0:
            return max(0, built_ns)
        busy_frac = min(1.0, built_cpu_ns / built_ns)
        busy_workers, main_weight = self.workers * busy_frac, max(1.0, self._main_share)
        free_cores = self._cores - min(self._main_share, self._cores * main_weight / (busy_workers + main_weight))
        alone_ns = built_ns * (1 + self._crowd * self.workers / self._cores * busy_frac)
        return round(max(alone_ns, self.workers * built_cpu_ns / free_cores) if busy_workers else alone_ns)


def handover_ns(size_bytes: int) -> int:
    """Return the main thread's time to take a finished batch from a worker; the minimum if its size is unknown."""
    return round(MIN_HANDOVER_NS + HANDOVER_NS_PER_BYTE * max(0, size_bytes))
