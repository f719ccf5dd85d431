"""What happened to a GPU between two readings: throttling, memory errors, processes that come and go."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpulab.sensor_tables import DEVICE_SAMPLES
from gpulab.sensors.nvidia.xid import xid_text
from gpulab.watch.observation import Device, DeviceReading, Observation
from gpulab.watch.process_names import ProcessName
from gpulab.wording import count, duration, size

THROTTLING, MEMORY_ERROR, PROCESS, AVAILABILITY, DRIVER, XID = (
    "throttling",
    "memory error",
    "process",
    "availability",
    "driver",
    "Xid",
)
_FLAGS = DEVICE_SAMPLES.column("throttle_bits").flags


@dataclass(frozen=True, kw_only=True)
class DeviceEvent:
    """Something that happened to a device at a UNIX time."""

    device: Device
    at_s: int
    kind: str
    text: str


class DeviceEvents:
    """Compares each reading with the previous one of the same device."""

    def __init__(self) -> None:
        self._before: dict[str, DeviceReading] = {}
        self._throttled_since: dict[tuple[str, int], int] = {}
        self._processes: dict[str, Mapping[int, str]] = {}

    def between(self, observation: Observation, names: Mapping[int, ProcessName]) -> list[DeviceEvent]:
        """Return what happened since the previous observation."""
        events = []
        for reading in observation.readings:
            previous = self._before.get(reading.device.uid)
            for kind, text in self._changes(previous, reading, observation.at_s, names):
                events.append(DeviceEvent(device=reading.device, at_s=observation.at_s, kind=kind, text=text))
            self._before[reading.device.uid] = reading
        errors = [
            DeviceEvent(device=device, at_s=observation.at_s, kind=XID, text=xid_text(number))
            for device, number in observation.xids
        ]
        return [*events, *errors]

    def _changes(
        self, previous: DeviceReading | None, reading: DeviceReading, at_s: int, names: Mapping[int, ProcessName]
    ) -> Iterator[tuple[str, str]]:
        if previous is None:
            self._processes[reading.device.uid] = _running(reading, names)
        elif bool(previous.why) != bool(reading.why):
            yield AVAILABILITY, f"no readings: {reading.why}" if reading.why else "readings are back"
        if reading.why:
            return
        if previous is not None:
            if previous.device.driver != reading.device.driver:
                yield DRIVER, f"driver {previous.device.driver} was replaced by {reading.device.driver}"
            yield from _memory_errors(previous, reading)
        yield from self._throttling(reading, at_s)
        yield from self._arrivals(reading, names)

    def _throttling(self, reading: DeviceReading, at_s: int) -> Iterator[tuple[str, str]]:
        value = reading.values.get("throttle_bits", math.nan)
        if math.isnan(value):
            return
        for bit, label in _FLAGS:
            key, active = (reading.device.uid, bit), bool(int(value) & bit)
            since_s = self._throttled_since.get(key)
            if active and since_s is None:
                self._throttled_since[key] = at_s
                yield THROTTLING, f"throttling begins: {label}"
            elif not active and since_s is not None:
                del self._throttled_since[key]
                yield THROTTLING, f"throttling ends after {duration((at_s - since_s) * 1e9)}: {label}"

    def _arrivals(self, reading: DeviceReading, names: Mapping[int, ProcessName]) -> Iterator[tuple[str, str]]:
        if reading.processes is None:
            return
        before, now = self._processes.get(reading.device.uid, {}), _running(reading, names)
        self._processes[reading.device.uid] = now
        memory = {process.pid: process.memory_bytes for process in reading.processes}
        for pid in now.keys() - before.keys():
            amount = memory[pid]
            yield PROCESS, f"{now[pid]} starts" + ("" if not amount else f", with {size(amount)}")
        for pid in before.keys() - now.keys():
            yield PROCESS, f"{before[pid]} ends"


def _memory_errors(previous: DeviceReading, reading: DeviceReading) -> Iterator[tuple[str, str]]:
    for column, label in (("ecc_uncorrected", "uncorrected"), ("ecc_corrected", "corrected")):
        before, now = (each.values.get(column, math.nan) for each in (previous, reading))
        if now > before:
            yield MEMORY_ERROR, count(int(now - before), f"{label} memory error")


def _running(reading: DeviceReading, names: Mapping[int, ProcessName]) -> Mapping[int, str]:
    """Return the processes of a device, as text by pid."""
    return {process.pid: _text(names[process.pid]) for process in reading.processes or ()}


def _text(name: ProcessName) -> str:
    return f"{name.name} of {name.user or 'another user'} (process {name.pid})"
