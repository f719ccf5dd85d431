"""How far a virtual step may be off: the last steps timed again at dearer and cheaper prices, class by class.

Prices of one class are wrong together, those of different classes independently; so what each class may add to a step
is added as independent errors are, by squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gpulab.virtual.clock import Clock
from gpulab.virtual.cost_model.operators import SPREAD, OpClass
from gpulab.virtual.host.costs import SPREAD as HOST_SPREAD
from gpulab.virtual.host.costs import Host
from gpulab.virtual.op_log.ops import Record

Steps = Sequence[Sequence[Record]]
Timing = Callable[[Host, Mapping[OpClass, float]], Clock]  # a clock at these prices


def step_ns(steps: Steps, timing: Timing, host: Host, scale: Mapping[OpClass, float]) -> float:
    """The last of these steps on a GPU that is busy with the ones before it, at these multiples of the prices.

    A step cannot be shorter than what the host or the GPU needs for it, whichever takes longer: a host that runs
    ahead does so only until the queue of launches is full.
    """
    clock = timing(host, scale)
    host_ns = device_ns = 0
    for step in steps:
        host_ns, device_ns = clock.now_ns, max(clock.device_done_ns, clock.now_ns)
        for record in step:
            clock.take(record)
    return max(clock.now_ns - host_ns, clock.device_done_ns - device_ns)


def step_range_ns(steps: Steps, timing: Timing, host: Host) -> tuple[float, float]:
    """The least a step may take, and the most: P10 and P90."""
    middle = step_ns(steps, timing, host, {})
    used = _classes(steps, timing, host)
    less = more = 0.0
    for of in used:
        best, worst = SPREAD[of]
        less += (middle - step_ns(steps, timing, host, {of: best})) ** 2
        more += (step_ns(steps, timing, host, {of: worst}) - middle) ** 2
    best, worst = HOST_SPREAD
    less += (middle - step_ns(steps, timing, host.scaled(best), {})) ** 2
    more += (step_ns(steps, timing, host.scaled(worst), {}) - middle) ** 2
    return middle - math.sqrt(less), middle + math.sqrt(more)


def _classes(steps: Steps, timing: Timing, host: Host) -> set[OpClass]:
    """What is priced in these steps."""
    clock = timing(host, {})
    for step in steps:
        for record in step:
            clock.take(record)
    return clock.log.classes
