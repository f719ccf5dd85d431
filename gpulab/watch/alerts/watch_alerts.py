"""Alerts on what `gpulab watch` observes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpulab.sensor_tables import ThrottleReason
from gpulab.watch.alerts.alert import Alert
from gpulab.watch.alerts.delivery import Delivery
from gpulab.watch.alerts.engine import AlertEngine, Firing, SubjectMeasures
from gpulab.watch.alerts.measures import Measure
from gpulab.watch.alerts.memory_trend import MemoryTrend
from gpulab.watch.alerts.notice import Holder, Notice
from gpulab.watch.observation import Device, DeviceReading, Observation
from gpulab.watch.process_names import ProcessName
from gpulab.watch.schema import HOST_KIND

ALERT_EVENT = "alert"
_HEAT = int(ThrottleReason.HEAT | ThrottleReason.HARDWARE_HEAT)
# The power cap alone is how a busy GPU works; it counts as throttling only together with another reason.
_THROTTLE = _HEAT | int(ThrottleReason.HARDWARE_SLOWDOWN | ThrottleReason.POWER_BRAKE)
Record = Callable[[Device | None, float, str, str], None]  # device, time, kind, text


class WatchAlerts:
    """A listener of the watcher: checks every alert on every GPU, records and delivers those that begin or end."""

    def __init__(self, alerts: Sequence[Alert], delivery: Delivery, record: Record, *, period_s: float = 1.0) -> None:
        self._engine = AlertEngine(alerts, period_s=period_s)
        self._delivery, self._record = delivery, record
        self._trends: dict[str, MemoryTrend] = {}
        self._errors: dict[str, float] = {}  # ECC errors at the previous reading

    def __call__(self, observation: Observation, names: Mapping[int, ProcessName]) -> None:
        """Check one observation."""
        gpus = [reading for reading in observation.readings if reading.device.kind != HOST_KIND]
        for index, reading in enumerate(gpus):
            facts = SubjectMeasures(subject=reading.device.uid, values=dict(self._values(reading, observation.at_s)),
                          is_held=_is_held(reading))  # fmt: skip
            for firing in self._engine.update(observation.at_s, facts):
                self._announce(firing, f"GPU {index} ({reading.device.name})", reading, names)
        self._delivery.tick(observation.at_s)

    def _announce(self, firing: Firing, subject: str, reading: DeviceReading, names: Mapping[int, ProcessName]) -> None:
        self._record(reading.device, firing.at_s, ALERT_EVENT, firing.text)
        holders = tuple(
            Holder(name=names[process.pid], memory_bytes=process.memory_bytes) for process in reading.processes or ()
        )
        self._delivery.send(
            Notice(
                at_s=firing.at_s,
                subject=subject,
                measure=firing.alert.measure,
                headline=firing.text,
                ended=firing.ended,
                holders=holders,
            )
        )

    def _values(self, reading: DeviceReading, at_s: float) -> Iterator[tuple[Measure, float]]:
        yield Measure.NO_READINGS, float(bool(reading.why))
        if reading.why:
            return
        values, device = reading.values, reading.device
        util_frac = values.get("util_frac", math.nan)
        yield Measure.UTILISATION, values.get("sm_active_frac", math.nan) if math.isnan(util_frac) else util_frac
        yield Measure.TEMPERATURE, values.get("temperature_c", math.nan)
        yield Measure.POWER, values.get("power_w", math.nan)
        used_bytes = values.get("memory_used_bytes", math.nan)
        if device.memory_bytes:
            yield Measure.MEMORY, used_bytes / device.memory_bytes
            trend = self._trends.setdefault(device.uid, MemoryTrend(device.memory_bytes))
            yield Measure.MEMORY_TIME_LEFT, trend.add(at_s, used_bytes)
        yield from throttling_values(values.get("throttle_bits", math.nan))
        yield Measure.MEMORY_ERRORS, self._new_errors(device.uid, values.get("ecc_uncorrected", math.nan))

    def _new_errors(self, uid: str, errors: float) -> float:
        before, self._errors[uid] = self._errors.get(uid, errors), errors
        return max(0.0, errors - before)  # the counter begins anew with the driver


def throttling_values(bits: float) -> Iterator[tuple[Measure, float]]:
    """Yield whether a GPU is throttled, by the driver's bit mask; nothing if it is unknown."""
    if math.isnan(bits):
        return
    yield Measure.THROTTLED, float(bool(int(bits) & _THROTTLE))
    yield Measure.THROTTLED_BY_HEAT, float(bool(int(bits) & _HEAT))
    yield Measure.THROTTLED_BY_POWER, float(bool(int(bits) & int(ThrottleReason.POWER_CAP)))


def _is_held(reading: DeviceReading) -> bool | None:
    """Whether a process holds memory on the GPU; None if the driver does not list processes."""
    return None if reading.processes is None else bool(reading.processes)
