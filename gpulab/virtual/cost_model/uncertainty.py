"""Uncertainty of a virtual step time: the last steps are timed again with each class scaled to its P10 and P90.

Errors within a class are fully correlated, errors of different classes independent; so the deviations of the classes
are added in quadrature.
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
Timing = Callable[[Host, Mapping[OpClass, float]], Clock]  # a clock with this host and these factors


def step_ns(steps: Steps, timing: Timing, host: Host, scale: Mapping[OpClass, float]) -> float:
    """Return the time of the last of these steps, on a GPU that is still busy with the previous ones.

    `scale`: factors on the cost of operators, by class. A step takes at least the host's or the GPU's time for it,
    whichever is longer: the host runs ahead only until the launch queue is full.
    """
    clock = timing(host, scale)
    host_ns = device_ns = 0
    for step in steps:
        host_ns, device_ns = clock.now_ns, max(clock.device_done_ns, clock.now_ns)
        for record in step:
            clock.take(record)
    return max(clock.now_ns - host_ns, clock.device_done_ns - device_ns)


def step_range_ns(steps: Steps, timing: Timing, host: Host) -> tuple[float, float]:
    """Return P10 and P90 of the step time."""
    nominal_ns = step_ns(steps, timing, host, {})
    classes = _classes(steps, timing, host)
    less = more = 0.0
    for op_class in classes:
        best, worst = SPREAD[op_class]
        less += (nominal_ns - step_ns(steps, timing, host, {op_class: best})) ** 2
        more += (step_ns(steps, timing, host, {op_class: worst}) - nominal_ns) ** 2
    best, worst = HOST_SPREAD
    less += (nominal_ns - step_ns(steps, timing, host.scaled(best), {})) ** 2
    more += (step_ns(steps, timing, host.scaled(worst), {}) - nominal_ns) ** 2
    return nominal_ns - math.sqrt(less), nominal_ns + math.sqrt(more)


def _classes(steps: Steps, timing: Timing, host: Host) -> set[OpClass]:
    """Return the operator classes in these steps."""
    clock = timing(host, {})
    for step in steps:
        for record in step:
            clock.take(record)
    return clock.log.classes
