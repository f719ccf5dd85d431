"""Steps of a JAX program: those that XLA found on the device, or executions of the module that takes the most time."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from gpulab.trace.xla.document import Event, XlaLane

STEPS, MODULES = "Steps", "XLA Modules"
_MIN_STEPS = 3
_MIN_MODULE_FRAC = 0.5  # of the time in modules; smaller ones are parts of a step
_NUMBER = re.compile(r"\(\d+\)$")  # "jit_train_step(1234567)": a fingerprint


def device_steps(events: Sequence[Event], lanes: Mapping[tuple[int, int], XlaLane], process: str) -> list[Event]:
    """The steps on the lanes of this device, each with a name; [] if there are none."""
    by_lane: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        lane = lanes[event.pid, event.tid]
        if lane.process == process and lane.thread in (STEPS, MODULES):
            by_lane[lane.thread].append(event)
    if len(by_lane[STEPS]) >= _MIN_STEPS:
        return [_step_event(event, f"step {event.name}") for event in by_lane[STEPS]]
    return _repeated_module(by_lane[MODULES])


def annotated_steps(events: Sequence[Event]) -> list[Event]:
    """Steps that the program annotated with jax.profiler.StepTraceAnnotation; [] if there are none."""
    numbered = [event for event in events if "step_num" in event.args]
    names = Counter(event.name for event in numbered)
    if not names:
        return []
    name, count = names.most_common(1)[0]
    steps = [event for event in numbered if event.name == name]
    return [_step_event(event, f"{name} {event.args['step_num']}") for event in steps] if count >= _MIN_STEPS else []


def _repeated_module(modules: Sequence[Event]) -> list[Event]:
    total_us: Counter[str] = Counter()
    for event in modules:
        total_us[_NUMBER.sub("", event.name)] += max(1, int(event.dur))
    if not total_us:
        return []
    name, most_us = total_us.most_common(1)[0]
    executions = [event for event in modules if _NUMBER.sub("", event.name) == name]
    if len(executions) < _MIN_STEPS or most_us < _MIN_MODULE_FRAC * sum(total_us.values()):
        return []
    return [_step_event(event, name) for event in executions]


def _step_event(event: Event, name: str) -> Event:
    return Event(ph=event.ph, name=name[:200], pid=event.pid, tid=event.tid, ts=event.ts, dur=event.dur)
