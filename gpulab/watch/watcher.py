"""The loop of `gpulab watch`: observe, compare, store, and tell the alerts, once a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpulab.watch.clock import Clock
from gpulab.watch.device_events import DeviceEvents
from gpulab.watch.observation import Device, Observation, Observer, unmeasured_text
from gpulab.watch.process_names import ProcessName, ProcessNames
from gpulab.watch.writer import MAX_BYTES, HistoryWriter
from gpulab.wording import duration

CLOCK_EVENT, SENSOR_EVENT = "clock", "sensors"
_JUMP_S = 2.0  # smaller differences are the work of a time server
_MAINTENANCE_S = 60

Listener = Callable[[Observation, Mapping[int, ProcessName]], None]


@dataclass
class _Times:
    """The three clocks at the previous reading."""

    at_s: int
    now_s: float
    steady_s: float
    uptime_s: float


class Watcher:
    """Observes until its clock is stopped. Listeners receive each observation after it is stored.

    Raises StoreError if the history cannot be opened; a history that cannot be written later is reported by `failure`.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        observer: Observer | None = None,
        every_s: int = 1,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.clock = clock or Clock()
        self.observer = observer or Observer(self.clock)
        self.writer = HistoryWriter(path, self.observer.host_name, max_bytes=max_bytes)
        self._every_s, self._listeners = every_s, list[Listener]()
        self._names, self._events = ProcessNames(), DeviceEvents()
        self._times: _Times | None = None
        self._missing: dict[str, tuple[Device, int, str]] = {}  # devices without readings: since when, and why
        self._sensor_gaps = ""
        self._next_maintenance_s = 0.0
        self._closed = False
        self.readings = 0

    @property
    def failure(self) -> str:
        """Why the history cannot be written at the moment; "" if it can."""
        return self.writer.failure

    def listen(self, listener: Listener) -> None:
        """Call a function with each observation, and with the names of the processes by pid."""
        self._listeners.append(listener)

    def run(self) -> None:
        """Observe until the clock is stopped; then write everything."""
        self.begin()
        try:
            while not self.clock.wait(self._seconds_to_next()):
                self.tick()
        finally:
            self.close()

    def begin(self) -> None:
        """Name the gap since the previous watch."""
        self.writer.begin(int(self.clock.now_s()))
        self.observer.expect(self.writer.devices())

    def tick(self) -> Observation:
        """Observe once."""
        observation = self.observer.observe()
        self._note_time(observation.at_s)
        names = self._names.of(_pids(observation))
        for event in self._events.between(observation, names):
            self.writer.event(event.device, event.at_s, event.kind, event.text)
        self._note_missing(observation)
        self.writer.append(observation, names)
        self._maintain(observation.at_s)
        self.readings += 1
        for listener in self._listeners:
            listener(observation, names)
        return observation

    def close(self) -> None:
        """Write what waits, and close everything. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self.writer.close(int(self.clock.now_s()))
            self.observer.close()

    def _seconds_to_next(self) -> float:
        # In the middle of a second, so that a delay of half a second does not skip one.
        now_s = self.clock.now_s()
        due_s = (now_s - 0.5) // self._every_s * self._every_s + self._every_s + 0.5
        return due_s - now_s

    def _note_time(self, at_s: int) -> None:
        """Name the reason if the time since the previous reading is not a period: a clock that was set, a delay."""
        now = _Times(at_s, self.clock.now_s(), self.clock.steady_s(), self.clock.uptime_s())
        before, self._times = self._times, now
        if before is None:
            return
        steady_s = now.steady_s - before.steady_s
        jump_s = now.now_s - before.now_s - steady_s
        asleep_s = now.uptime_s - before.uptime_s - steady_s
        why = f"the readings took {duration(steady_s * 1e9)}: the driver or the machine did not answer"
        if asleep_s > _JUMP_S:
            why = f"the machine was suspended for {duration(asleep_s * 1e9)}"
        elif jump_s > _JUMP_S:
            why = f"the clock was set forward by {duration(jump_s * 1e9)}"
        elif jump_s < -_JUMP_S:
            until = datetime.fromtimestamp(before.at_s).strftime("%H:%M:%S")
            why = f"the clock was set back by {duration(-jump_s * 1e9)}; seconds until {until} have readings already"
        if abs(jump_s) > _JUMP_S or asleep_s > _JUMP_S:
            self.writer.event(None, at_s, CLOCK_EVENT, why)
        if at_s - before.at_s > self._every_s:
            self.writer.gap(None, before.at_s + self._every_s, at_s, why)

    def _note_missing(self, observation: Observation) -> None:
        """Record gaps of devices that have no reading, and sensors that cannot be read."""
        lost = {reading.device.uid: reading for reading in observation.readings if reading.why}
        for uid, reading in lost.items():
            device, since_s, why = self._missing.get(uid, (reading.device, observation.at_s, reading.why))
            self._missing[uid] = device, since_s, why
            self.writer.gap(device, since_s, observation.at_s + 1, why)
        for uid in self._missing.keys() - lost.keys():
            device, since_s, why = self._missing.pop(uid)
            self.writer.gap(device, since_s, observation.at_s, why)
        text = unmeasured_text(observation.gaps)
        if text != self._sensor_gaps:
            self._sensor_gaps = text
            if text:
                self.writer.event(None, observation.at_s, SENSOR_EVENT, f"not measured: {text}")

    def _maintain(self, at_s: int) -> None:
        if self.clock.steady_s() >= self._next_maintenance_s:
            self._next_maintenance_s = self.clock.steady_s() + _MAINTENANCE_S
            self.writer.maintain(at_s)


def _pids(observation: Observation) -> list[int]:
    return sorted({process.pid for reading in observation.readings for process in reading.processes or ()})
