"""Uncertainty of a virtual step time: the last steps are timed again with each class scaled to its P10 and P90.

Errors within a class are fully correlated, errors of different classes independent; so the deviations of the classes
are added in quadrature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gpulab.virtual.clock import VirtualClock
from gpulab.virtual.cost_model.operators import COST_FACTORS, OpClass
from gpulab.virtual.host.costs import HOST_COST_FACTORS as HOST_SPREAD
from gpulab.virtual.host.costs import HostCosts
from gpulab.virtual.op_log.ops import Record

StepRecords = Sequence[Sequence[Record]]
ClockFactory = Callable[[HostCosts, Mapping[OpClass, float]], VirtualClock]  # a clock with this host and these factors


def step_ns(steps: StepRecords, make_clock: ClockFactory, host: HostCosts, factors: Mapping[OpClass, float]) -> float:
    """Return the time of the last of these steps, on a GPU that is still busy with the previous ones.

    `factors`: factors on the cost of operators, by class. A step takes at least the host's or the GPU's time for it,
    whichever is longer: the host runs ahead only until the launch queue is full.
    """
    clock = make_clock(host, factors)
    host_ns = device_ns = 0
    for step in steps:
        host_ns, device_ns = clock.now_ns, max(clock.device_done_ns, clock.now_ns)
        for record in step:
            clock.process(record)
    return max(clock.now_ns - host_ns, clock.device_done_ns - device_ns)


def step_range_ns(steps: StepRecords, make_clock: ClockFactory, host: HostCosts) -> tuple[float, float]:
    """Return P10 and P90 of the step time."""
    nominal_ns = step_ns(steps, make_clock, host, {})
    classes = _classes(steps, make_clock, host)
    less = more = 0.0
    for op_class in classes:
        best, worst = COST_FACTORS[op_class]
        less += (nominal_ns - step_ns(steps, make_clock, host, {op_class: best})) ** 2
        more += (step_ns(steps, make_clock, host, {op_class: worst}) - nominal_ns) ** 2
    best, worst = HOST_SPREAD
    less += (nominal_ns - step_ns(steps, make_clock, host.scaled(best), {})) ** 2
    more += (step_ns(steps, make_clock, host.scaled(worst), {}) - nominal_ns) ** 2
    return nominal_ns - math.sqrt(less), nominal_ns + math.sqrt(more)


def _classes(steps: StepRecords, timing: ClockFactory, host: HostCosts) -> set[OpClass]:
    """Return the operator classes in these steps."""
    clock = timing(host, {})
    for step in steps:
        for record in step:
            clock.process(record)
    return clock.log.kernel_classes
