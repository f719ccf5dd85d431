"""All-reduce by a ring, a tree and a hierarchy, with lists instead of devices: steps, and bytes on each link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
BYTES_PER_NUMBER = 4  # as float32, although the simulation adds in float64
HOSTS, PER_HOST = 2, 4
NUMBERS = 840  # per device; 1 to 8 divide it
DATA_BYTES = NUMBERS * BYTES_PER_NUMBER


@dataclass
class ExchangeLog:
    """Counts the messages of a simulated all-reduce."""

    steps: int = 0  # messages of one step are sent at the same time
    bytes_by_link: Counter[tuple[int, int]] = field(default_factory=Counter)  # (sender, receiver) -> bytes

    def send(self, sender: int, receiver: int, vector: Vector) -> Vector:
        """Count a message, and return its content."""
        self.bytes_by_link[sender, receiver] += vector.size * BYTES_PER_NUMBER
        return vector.copy()

    @property
    def bytes_between_hosts(self) -> int:
        """Bytes that leave a host, in both directions together."""
        return sum(size for (sender, receiver), size in self.bytes_by_link.items() if host(sender) != host(receiver))


def host(device: int) -> int:
    """Return the host of a device: devices 0 to 3 are in host 0, 4 to 7 in host 1."""
    return device // PER_HOST


def device_vectors() -> list[Vector]:
    """Return one vector of NUMBERS whole numbers per device."""
    random = np.random.default_rng(0)
    return [random.integers(0, 100, NUMBERS).astype(np.float64) for _ in range(HOSTS * PER_HOST)]


def ring(vectors: Sequence[Vector], order: Sequence[int], log: ExchangeLog | None = None) -> ExchangeLog:
    """Add the vectors of the devices in `order`, in place, by a ring in this order. Each device sends to the next."""
    log = ExchangeLog() if log is None else log
    parts = [np.array_split(vectors[device], len(order)) for device in order]  # views: writing changes the vectors
    scatter_ring(parts, order, log)
    gather_ring(parts, order, log)
    return log


def scatter_ring(parts: Sequence[Sequence[Vector]], order: Sequence[int], log: ExchangeLog) -> None:
    """Reduce-scatter: position p of the ring ends with the sum of part p + 1."""
    count = len(order)
    for step in range(count - 1):
        log.steps += 1
        messages = [
            (p, (p - step) % count, log.send(order[p], order[(p + 1) % count], parts[p][(p - step) % count]))
            for p in range(count)
        ]
        for p, part, vector in messages:
            parts[(p + 1) % count][part][:] += vector


def gather_ring(parts: Sequence[Sequence[Vector]], order: Sequence[int], log: ExchangeLog) -> None:
    """All-gather: each position passes on the sums, beginning with its own."""
    count = len(order)
    for step in range(count - 1):
        log.steps += 1
        messages = [
            (p, (p + 1 - step) % count, log.send(order[p], order[(p + 1) % count], parts[p][(p + 1 - step) % count]))
            for p in range(count)
        ]
        for p, part, vector in messages:
            parts[(p + 1) % count][part][:] = vector


def tree(vectors: Sequence[Vector]) -> ExchangeLog:
    """Add all vectors, in place: pairs, pairs of pairs, ... to device 0, and the sum back the same way."""
    log, count = ExchangeLog(), len(vectors)
    distances = [1 << level for level in range((count - 1).bit_length())]
    for distance in distances:
        log.steps += 1
        for device in range(0, count - distance, 2 * distance):
            vectors[device][:] += log.send(device + distance, device, vectors[device + distance])
    for distance in reversed(distances):
        log.steps += 1
        for device in range(0, count - distance, 2 * distance):
            vectors[device + distance][:] = log.send(device, device + distance, vectors[device])
    return log


def hierarchy(vectors: Sequence[Vector]) -> ExchangeLog:
    """Add all vectors, in place: reduce-scatter in each host, all-reduce of each part between hosts, all-gather."""
    groups = [list(range(first, first + PER_HOST)) for first in range(0, len(vectors), PER_HOST)]
    parts = [[np.array_split(vectors[device], PER_HOST) for device in group] for group in groups]
    log = ExchangeLog()
    _at_once(log, [partial(scatter_ring, parts[g], group) for g, group in enumerate(groups)])
    _at_once(log, [partial(_exchange, groups, parts, position) for position in range(PER_HOST)])
    _at_once(log, [partial(gather_ring, parts[g], group) for g, group in enumerate(groups)])
    return log


def _exchange(groups: list[list[int]], parts: list[list[list[Vector]]], position: int, log: ExchangeLog) -> None:
    """Add the part that devices at this position of each host have reduced."""
    part = (position + 1) % PER_HOST
    sums = {group[position]: parts[g][position][part] for g, group in enumerate(groups)}
    ring([sums.get(device, np.zeros(0)) for device in range(max(sums) + 1)], list(sums), log)


def _at_once(log: ExchangeLog, exchanges: Sequence[Callable[[ExchangeLog], None]]) -> None:
    """Run exchanges that take place at the same time: their steps count once."""
    begin, ends = log.steps, []
    for exchange in exchanges:
        log.steps = begin
        exchange(log)
        ends.append(log.steps)
    log.steps = max(ends)
