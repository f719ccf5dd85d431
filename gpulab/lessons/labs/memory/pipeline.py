"""A pipeline of devices, simulated slot by slot: which share of the time they wait for each other."""

from __future__ import annotations


def idle_frac(devices: int, micro_batches: int) -> float:
    """Return the idle share of a pipeline: each device takes a slot for each micro-batch, in order.

    A device begins a micro-batch when it is free, and when the device before it has finished that micro-batch. Idle
    time counts from the first start to the last end.
    """
    ends = [0] * micro_batches  # when the previous device finishes each micro-batch
    for _ in range(devices):
        free = 0
        for index in range(micro_batches):
            free = max(free, ends[index]) + 1
            ends[index] = free
    total = ends[-1]
    return 1 - micro_batches / total
