"""A GPU of arithmetic, exact to the microsecond, on which a program can read a buffer before its copy has arrived.

    gpu = Gpu(bytes_per_us=50_000)
    host = gpu.pinned(1_000)            # zeros: what was there before
    gpu.compute(200)                    # kernels for 200 us are queued; the call returns at once
    gpu.fetch(host, values)             # a copy to the host behind them, non_blocking=True
    gpu.read(host)                      # what the host finds there now: zeros
    gpu.record().synchronize()          # an event behind the copy, and the wait for it
    gpu.read(host)                      # the values

Work goes through one stream, in order. A copy fills its buffer from front to back at the pace of the link, so a read
meanwhile finds the front new and the rest old. Calls cost the host nothing here; only `work` and waits take its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float32]


@dataclass(eq=False)
class Pinned:
    """A buffer in the host's memory that the GPU writes to on its own."""

    values: Values  # as far as is known; what is under way stands in `coming`
    coming: list[tuple[float, float, Values]] = field(default_factory=list)  # begins, ends, brings


@dataclass(frozen=True)
class Event:
    """A mark in the stream: done when all that was queued before it is."""

    gpu: Gpu
    at_us: float

    @property
    def done(self) -> bool:
        """Whether all before it is done; asking does not wait. In PyTorch: event.query()."""
        return self.gpu.now_us >= self.at_us

    def synchronize(self) -> None:
        """The host waits until it is done."""
        self.gpu.now_us = max(self.gpu.now_us, self.at_us)


class Gpu:
    """One GPU with one stream, and the host that calls it; both start at zero."""

    def __init__(self, bytes_per_us: float = 50_000.0) -> None:
        if bytes_per_us <= 0:
            raise ValueError("a link must carry something")
        self.bytes_per_us = bytes_per_us
        self.now_us = 0.0  # where the host is
        self._free_us = 0.0  # when the stream will have done what it was given

    def pinned(self, count: int) -> Pinned:
        """A buffer of so many numbers, all zero."""
        return Pinned(np.zeros(count, np.float32))

    def work(self, us: float) -> None:
        """The host is busy with something else."""
        self.now_us += us

    def compute(self, us: float) -> None:
        """Queue kernels."""
        self._queue(us)

    def fetch(self, target: Pinned, values: ArrayLike) -> None:
        """Queue a copy of the GPU's values to a buffer of the host, and go on: non_blocking=True."""
        bringing = np.array(values, np.float32)
        if bringing.shape != target.values.shape:
            raise ValueError(f"{bringing.size} values do not fit a buffer of {target.values.size}")
        begins = self._queue(bringing.nbytes / self.bytes_per_us)
        target.coming.append((begins, self._free_us, bringing))

    def record(self) -> Event:
        """An event behind all that was queued so far."""
        return Event(self, max(self._free_us, self.now_us))

    def read(self, buffer: Pinned) -> Values:
        """What the host finds in the buffer at this moment."""
        found = buffer.values.copy()
        for begins, ends, values in buffer.coming:
            share = 1.0 if ends <= self.now_us else max(0.0, (self.now_us - begins) / (ends - begins))
            arrived = int(share * len(values))
            found[:arrived] = values[:arrived]
        return found

    def _queue(self, us: float) -> float:
        begins = max(self._free_us, self.now_us)
        self._free_us = begins + us
        return begins


def wrong(found: Sequence[float] | Values, right: Sequence[float] | Values) -> int:
    """How many of the values are not what they should be."""
    return int((np.asarray(found, np.float32) != np.asarray(right, np.float32)).sum())
