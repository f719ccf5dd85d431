"""Little's law on a GPU: warps that wait for loads, and the bandwidth that they reach.

A multiprocessor is simulated load by load: each warp asks for some bytes, waits for them, and asks again.
Memory answers after a fixed latency, and moves a limited number of bytes per nanosecond.
"""

from __future__ import annotations

import heapq

WARP_LOAD_BYTES = 128  # 32 threads load 4 bytes


def needed_bytes(latency_ns: float, bytes_per_ns: float) -> float:
    """Return how many bytes must be in flight to reach the bandwidth (Little's law)."""
    return latency_ns * bytes_per_ns


def simulated_bandwidth(
    warps: int, *, latency_ns: float, bytes_per_ns: float, loads_per_warp: int = 1, rounds: int = 200
) -> float:
    """Return the bytes per nanosecond that these warps load.

    `loads_per_warp`: independent loads that a warp has in flight before it waits. `bytes_per_ns`: the bandwidth.
    """
    request = WARP_LOAD_BYTES * loads_per_warp
    ready = [0.0] * warps  # when each warp asks next
    heapq.heapify(ready)
    memory_free, last_arrival = 0.0, 0.0
    for _ in range(warps * rounds):
        asks_at = heapq.heappop(ready)
        memory_free = max(memory_free, asks_at) + request / bytes_per_ns
        last_arrival = max(memory_free, asks_at + latency_ns)
        heapq.heappush(ready, last_arrival)
    return warps * rounds * request / last_arrival
