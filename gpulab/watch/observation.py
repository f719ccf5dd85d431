"""One reading of all GPUs, of the processes on them, and of the host."""

from __future__ import annotations

import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpulab.run import Gap, Gpu
from gpulab.sensor_tables import HOST_SAMPLES
from gpulab.sensors.amd import AmdSmi
from gpulab.sensors.host.process import HostSensors
from gpulab.sensors.nvidia.gpu_processes import GpuProcess
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.sensors.nvidia.nvml_watch_sensors import watch_sensors
from gpulab.watch.clock import Clock
from gpulab.watch.schema import GPU_KIND, HOST_KIND, MIG_KIND, READINGS

_RETRY_S = 60.0  # between two attempts to find a driver or a lost GPU
_TIMES = re.compile(r" \(\d+ times\)$")
_HOST_READINGS = tuple(column.name for column in READINGS if column in HOST_SAMPLES.columns)


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU, a MIG instance, or the host itself."""

    uid: str
    kind: str
    name: str
    memory_bytes: float | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: float | None = None
    driver: str | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceReading:
    """Readings of one device; `processes` is None if they are not listed. `why` says why the device has no reading."""

    device: Device
    values: Mapping[str, float]
    processes: tuple[GpuProcess, ...] | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One reading of all devices, at one UNIX time; `gaps` are sensors that cannot be read."""

    at_s: int
    readings: tuple[DeviceReading, ...]
    xids: tuple[tuple[Device, int], ...] = ()  # Xid errors of NVIDIA's driver since the previous observation
    gaps: tuple[Gap, ...] = ()


class Observer:
    """Reads all devices. A lost GPU and a missing driver are looked for again every minute."""

    def __init__(
        self, clock: Clock, *, open_nvml: Callable[[], Nvml] | None = None, open_amd: Callable[[], AmdSmi] | None = None
    ) -> None:
        self.host_name = platform.node()
        self._clock = clock
        self._open_nvml = open_nvml or _all_gpus
        self._nvml = self._open_nvml()
        self._amd = (open_amd or _amd_gpus)()
        self._tried_s = clock.steady_s()
        self._host = HostSensors()
        self._lost: dict[str, tuple[Device, str]] = {}  # devices that had readings before, and why they have none

    def observe(self) -> Observation:
        """Read everything once."""
        self._look_for_lost()
        at_s = int(self._clock.now_s())
        readings = [self._read_host()]
        answering = {gpu.index for gpu in self._nvml.available_gpus}
        readings += [self._read_gpu(self._nvml, gpu) for gpu in self._nvml.gpus if gpu.index in answering]
        readings += [self._read_gpu(self._amd, gpu) for gpu in self._amd.gpus]
        self._note_lost()
        present = {reading.device.uid for reading in readings if not reading.why}
        readings += [
            DeviceReading(device=device, values={}, why=why)
            for uid, (device, why) in self._lost.items()
            if uid not in present
        ]
        by_index = {gpu.index: gpu for gpu in self._nvml.gpus}
        xids = tuple((_device(self._nvml, by_index[index]), number) for index, number in self._nvml.xids())
        return Observation(
            at_s=at_s, readings=tuple(readings), xids=xids, gaps=(*self._driver_gaps(), *self._host.gaps)
        )

    def expect(self, devices: Sequence[Device]) -> None:
        """Report these GPUs as missing until they are found: an earlier watch of this machine read them."""
        for device in devices:
            if device.kind != HOST_KIND:
                self._lost.setdefault(device.uid, (device, "the driver does not list this GPU"))

    def close(self) -> None:
        """Close the driver and the files."""
        self._nvml.close()
        self._amd.close()
        self._host.close()

    def _driver_gaps(self) -> tuple[Gap, ...]:
        """What the drivers do not give; a missing driver of NVIDIA is none where AMD's is there."""
        nvidia = () if self._amd.gpus and not self._nvml.gpus else self._nvml.gaps
        return (*nvidia, *self._amd.gaps)

    def _read_host(self) -> DeviceReading:
        values = self._host.read()
        device = Device(uid=self.host_name, kind=HOST_KIND, name=self.host_name)
        return DeviceReading(device=device, values={name: values[name] for name in _HOST_READINGS})

    def _read_gpu(self, driver: Nvml | AmdSmi, gpu: Gpu) -> DeviceReading:
        device = _device(driver, gpu)
        values = driver.read(gpu)
        processes = driver.processes(gpu)
        if all(math.isnan(value) for value in values.values()):
            return DeviceReading(device=device, values={}, why=self._why(gpu))
        self._lost.pop(device.uid, None)
        return DeviceReading(device=device, values=values, processes=processes)

    def _note_lost(self) -> None:
        answering = {gpu.index for gpu in self._nvml.available_gpus}
        for gpu in self._nvml.gpus:
            if gpu.index not in answering:
                device = _device(self._nvml, gpu)
                self._lost.setdefault(device.uid, (device, self._why(gpu)))

    def _why(self, gpu: Gpu) -> str:
        """Why nothing of this GPU can be read, by the gaps that name all of its sensors."""
        reasons = [gap.why for gap in self._nvml.gaps if "sensors" in gap.what or gpu.name in gap.what]
        return _TIMES.sub("", reasons[-1]) if reasons else "the driver does not answer"

    def _look_for_lost(self) -> None:
        """Open the driver anew if it is missing or has lost a GPU, but not more often than once a minute."""
        complete = self._nvml.gpus and not self._lost and len(self._nvml.available_gpus) == len(self._nvml.gpus)
        if complete or self._clock.steady_s() - self._tried_s < _RETRY_S:
            return
        self._tried_s = self._clock.steady_s()
        self._note_lost()
        self._nvml.close()
        self._nvml = self._open_nvml()


def _device(driver: Nvml | AmdSmi, gpu: Gpu) -> Device:
    return Device(
        uid=gpu.uuid or f"{gpu.name} {gpu.index}",
        kind=MIG_KIND if driver.is_mig(gpu) else GPU_KIND,
        name=gpu.name,
        memory_bytes=gpu.memory_bytes,
        power_limit_w=gpu.power_limit_w,
        sm_clock_max_mhz=gpu.sm_clock_max_mhz,
        driver=driver.driver,
    )


def unmeasured_text(gaps: tuple[Gap, ...]) -> str:
    """Return what cannot be read, and why, in one line; without how often, which grows."""
    return "; ".join(f"{gap.what}: {_TIMES.sub('', gap.why)}" for gap in gaps)


def _all_gpus() -> Nvml:
    nvml = Nvml(sensors=watch_sensors(), all_devices=True)
    nvml.open()
    return nvml


def _amd_gpus() -> AmdSmi:
    amd = AmdSmi()
    amd.open()
    return amd
