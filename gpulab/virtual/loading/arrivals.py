"""When batches are there, on virtual time: worker processes build them in turn, some ahead of what was asked for.

The steady state of the same queue is replay.workers; what workers do to one another is replay.rewrites.feeding.
"""

from __future__ import annotations

from collections import deque

from gpulab.analysis.data.prefetch_bias import PREFETCHED
from gpulab.replay.rewrites.data.loading import CROWD, HANDOVER_LEAST_NS, HANDOVER_NS_PER_BYTE
from gpulab.virtual.op_log.ops import Fetch


class Arrivals:
    """One pass over a loader, batch by batch in order.

    As PyTorch does it: batch k is built by worker k mod N, which builds one at a time, and is given to it when batch
    k - prefetch_factor * N is taken; the first ones when the pass begins. Taken they are in order, whichever is ready.
    Of the cores the main thread keeps `main_share` busy; on what is left, workers that compute share.
    """

    def __init__(
        self,
        workers: int,
        prefetch_factor: int | None = PREFETCHED,
        cores: float | None = None,
        main_share: float = 1.0,
        crowd: float = sum(CROWD) / 2,
    ) -> None:
        self.workers, self._cores = workers, cores
        self._main_share, self._crowd = main_share, crowd
        ahead = workers * (prefetch_factor or PREFETCHED)
        self._free_ns: deque[int] = deque(maxlen=max(1, workers))  # when each worker is done, the next one's first
        self._taken_ns: deque[int] = deque(maxlen=max(1, ahead))
        self._begun_ns: int | None = None

    def arrives_ns(self, now_ns: int, built_ns: int, built_cpu_ns: int, starting_ns: int = 0) -> int:
        """When the batch asked for now is there.

        `starting_ns` is what of `built_ns` beginning the pass took: all workers wait for it.
        """
        if not self.workers:
            return now_ns + built_ns
        if self._begun_ns is None:
            self._begun_ns = now_ns + starting_ns
        free_ns = self._free_ns[0] if len(self._free_ns) == self._free_ns.maxlen else self._begun_ns
        asked_ns = self._taken_ns[0] if len(self._taken_ns) == self._taken_ns.maxlen else self._begun_ns
        ready_ns = max(free_ns, asked_ns) + self.crowded_ns(built_ns - starting_ns, built_cpu_ns)
        self._free_ns.append(ready_ns)
        there_ns = max(now_ns, ready_ns, self._taken_ns[-1] if self._taken_ns else 0)
        self._taken_ns.append(there_ns)
        return there_ns

    def goes_on_ns(self, now_ns: int, fetch: Fetch) -> int:
        """When the program, which asked now, goes on: with its batch, or told that there is none."""
        if not fetch.yielded:
            return now_ns + fetch.built_ns
        there_ns = self.arrives_ns(now_ns, fetch.built_ns, fetch.built_cpu_ns, fetch.starting_ns)
        return there_ns + (handover_ns(fetch.bytes) if self.workers else 0)

    def crowded_ns(self, built_ns: int, built_cpu_ns: int) -> int:
        """What a batch takes of a worker when all are at work: alone it took `built_ns`.

        All of them together cannot use more than the cores that the main thread leaves, which takes what it needs but
        no more than its equal share. Short of that, caches and clocks are shared: 0.1-0.4 of workers over cores.
        """
        if self._cores is None or built_ns <= 0:
            return max(0, built_ns)
        busy_frac = min(1.0, built_cpu_ns / built_ns)
        crew, own = self.workers * busy_frac, max(1.0, self._main_share)
        left = self._cores - min(self._main_share, self._cores * own / (crew + own))
        alone_ns = built_ns * (1 + self._crowd * self.workers / self._cores * busy_frac)
        return round(max(alone_ns, self.workers * built_cpu_ns / left) if crew else alone_ns)


def handover_ns(size_bytes: int) -> int:
    """What taking a ready batch from a worker costs the main thread; of one of unknown size the least."""
    return round(HANDOVER_LEAST_NS + HANDOVER_NS_PER_BYTE * max(0, size_bytes))
