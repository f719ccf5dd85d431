"""A simulated GPU, exact to the microsecond, on which a program can read a buffer before its copy has arrived.

    gpu = Gpu(bytes_per_us=50_000)
    host = gpu.pinned(1_000)            # zeros
    gpu.compute(200)                    # kernels for 200 us are queued; the call returns at once
    gpu.fetch(host, values)             # queues a D2H copy after them, non_blocking=True
    gpu.read(host)                      # the host reads too early: zeros
    done = gpu.Event()
    done.record()                       # an event after the copy
    done.synchronize()                  # the wait for it
    gpu.read(host)                      # the values

Work goes through one stream, in order. A copy fills its buffer from front to back at the rate of the link, so a read
during the copy finds new values at the front and old values after them. Calls cost the host no time here; only `work`
and waits do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float32]


@dataclass(eq=False)
class PinnedBuffer:
    """A pinned host buffer, which the GPU writes asynchronously."""

    values: Values  # before the pending copies in `pending_copies`
    pending_copies: list[tuple[float, float, Values]] = field(default_factory=list)  # start, end, values


class StreamEvent:
    """A CUDA event, with the methods of torch.cuda.Event: complete when all work before its record is complete."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self._gpu = gpu
        self._at_us = 0.0  # an event that was never recorded is complete, as in CUDA

    def record(self) -> None:
        """Place the event after all work queued so far."""
        self._at_us = self._gpu.queue_end_us

    def query(self) -> bool:
        """Return whether all work before the event is complete; does not wait."""
        return self._gpu.now_us >= self._at_us

    def synchronize(self) -> None:
        """Block the host until the event is complete."""
        self._gpu.now_us = max(self._gpu.now_us, self._at_us)


class SimulatedGpu:
    """One GPU with one stream, and the host that calls it; both start at zero."""

    def __init__(self, bytes_per_us: float = 50_000.0) -> None:
        if bytes_per_us <= 0:
            raise ValueError("bytes_per_us must be greater than 0")
        self.bytes_per_us = bytes_per_us
        self.now_us = 0.0  # time of the host
        self._free_us = 0.0  # when the stream finishes its queue

    def pinned(self, count: int) -> PinnedBuffer:
        """Return a pinned buffer of `count` zeros."""
        return PinnedBuffer(np.zeros(count, np.float32))

    def work(self, us: float) -> None:
        """Keep the host busy with other work."""
        self.now_us += us

    def compute(self, us: float) -> None:
        """Queue kernels that take this long."""
        self._queue(us)

    def fetch(self, target: PinnedBuffer, values: ArrayLike) -> None:
        """Queue a copy of the GPU's values to a host buffer and return at once: non_blocking=True."""
        copied_values = np.array(values, np.float32)
        if copied_values.shape != target.values.shape:
            raise ValueError(
                f"{copied_values.size} values do not fit a buffer of {target.values.size}: use the same size"
            )
        start_us = self._queue(copied_values.nbytes / self.bytes_per_us)
        target.pending_copies.append((start_us, self._free_us, copied_values))

    @property
    def queue_end_us(self) -> float:
        """When the stream has done all work queued so far."""
        return max(self._free_us, self.now_us)

    def Event(self) -> StreamEvent:  # noqa: N802 - the name in torch.cuda
        """Return an event that is not recorded yet."""
        return StreamEvent(self)

    def read(self, buffer: PinnedBuffer) -> Values:
        """Return the values that the host finds in the buffer now."""
        result = buffer.values.copy()
        for start_us, end_us, values in buffer.pending_copies:
            frac = 1.0 if end_us <= self.now_us else max(0.0, (self.now_us - start_us) / (end_us - start_us))
            arrived = int(frac * len(values))
            result[:arrived] = values[:arrived]
        return result

    def _queue(self, us: float) -> float:
        start_us = max(self._free_us, self.now_us)
        self._free_us = start_us + us
        return start_us


def count_wrong_values(values: Sequence[float] | Values, expected: Sequence[float] | Values) -> int:
    """Count the values that differ from the expected ones."""
    return int((np.asarray(values, np.float32) != np.asarray(expected, np.float32)).sum())
