"""Alerts on the loop and the GPUs of a running monitor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.run import Gpu
from gpulab.sensors import GpuReading
from gpulab.watch.alerts.alert import Alert
from gpulab.watch.alerts.delivery import Delivery
from gpulab.watch.alerts.engine import AlertEngine, Firing, SubjectMeasures
from gpulab.watch.alerts.measures import Measure
from gpulab.watch.alerts.memory_trend import MemoryTrend
from gpulab.watch.alerts.notice import ADVICE, Notice
from gpulab.watch.alerts.watch_alerts import throttling_values
from gpulab.wording import percent

LOOP = "the training loop"
_HELD_BYTES = 2**28  # a CUDA context without tensors takes about this


class LoopAlerts:
    """Checks alerts on every snapshot of a monitor. `earlier_step_s`: the usual step time, if it is known."""

    def __init__(
        self,
        alerts: Sequence[Alert],
        delivery: Delivery,
        *,
        period_s: float,
        earlier_step_s: float | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._engine = AlertEngine(alerts, period_s=period_s)
        self._delivery, self._clock_s = delivery, clock_s
        self._earlier_step_s = earlier_step_s
        self._trends: dict[int, MemoryTrend] = {}
        self._active: dict[tuple[Alert, str], str] = {}
        self.log: list[str] = []  # what began and ended, with the time of day, for the run

    def update(self, live: LiveSnapshot) -> str:
        """Add a snapshot; return the text of the alerts that are active, for the panel."""
        now_s = self._clock_s()
        loop = SubjectMeasures(subject=LOOP, values=dict(self._loop_values(live)))
        for facts in (loop, *self._gpu_facts(live, now_s)):
            for firing in self._engine.update(now_s, facts):
                self._announce(firing, live)
        self._delivery.tick(now_s)
        return "; ".join(self._active.values())

    def close(self) -> None:
        """Wait for what is being delivered."""
        self._delivery.close()

    def _announce(self, firing: Firing, live: LiveSnapshot) -> None:
        key = firing.alert, firing.subject
        self.log.append(f"{time.strftime('%H:%M:%S', time.localtime(firing.at_s))} {firing.subject}: {firing.text}")
        if firing.ended:
            self._active.pop(key, None)
        else:
            self._active[key] = f"{firing.subject}: {firing.text}. First: {ADVICE[firing.alert.measure]}"
        self._delivery.send(
            Notice(
                at_s=firing.at_s,
                subject=firing.subject,
                measure=firing.alert.measure,
                headline=firing.text,
                ended=firing.ended,
                activity=activity(live),
            )
        )

    def _loop_values(self, live: LiveSnapshot) -> Iterator[tuple[Measure, float]]:
        waiting = live.recent_waiting_frac if live.running else None
        yield Measure.DATA_WAIT, math.nan if waiting is None else waiting
        if self._earlier_step_s is not None:
            step_s = 1 / live.steps_per_s if live.running and live.steps_per_s else math.nan
            yield Measure.STEP_TIME_CHANGE, step_s / self._earlier_step_s - 1

    def _gpu_facts(self, live: LiveSnapshot, now_s: float) -> Iterator[SubjectMeasures]:
        for index, reading in enumerate(live.gpus):
            used_bytes = _value(reading, "memory_used_bytes")
            held_bytes = used_bytes - (reading.value("others_memory_bytes") or 0.0)
            yield SubjectMeasures(
                subject=f"GPU {index} ({reading.gpu.name})",
                values=dict(self._gpu_values(index, reading.gpu, reading, now_s)),
                is_held=None if math.isnan(held_bytes) else held_bytes > _HELD_BYTES,
            )

    def _gpu_values(self, index: int, gpu: Gpu, reading: GpuReading, now_s: float) -> Iterator[tuple[Measure, float]]:
        yield Measure.UTILISATION, _value(reading, "util_frac")
        yield Measure.TEMPERATURE, _value(reading, "temperature_c")
        yield Measure.POWER, _value(reading, "power_w")
        yield from throttling_values(_value(reading, "throttle_bits"))
        if gpu.memory_bytes:
            used_bytes = _value(reading, "memory_used_bytes")
            yield Measure.MEMORY, used_bytes / gpu.memory_bytes
            trend = self._trends.setdefault(index, MemoryTrend(gpu.memory_bytes))
            yield Measure.MEMORY_TIME_LEFT, trend.add(now_s, used_bytes)


def activity(live: LiveSnapshot) -> str:
    """Say what the loop does now: its share of waiting for data, and the line that the main thread is at."""
    parts = []
    if live.recent_waiting_frac is not None:
        parts.append(f"the loop waits for data {percent(live.recent_waiting_frac)} of the time")
    if live.frame:
        parts.append(f"the main thread is at {live.frame}")
    return "; ".join(parts) or ("no step is running" if not live.running else "")


def _value(reading: GpuReading, column: str) -> float:
    value = reading.value(column)
    return math.nan if value is None else value
