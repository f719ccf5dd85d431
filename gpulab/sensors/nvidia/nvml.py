"""Readings of NVIDIA GPUs through nvidia-ml-py.

Everything is read, nothing is ever set. A failed reading affects no other: its value is NaN, and `gaps` says why.
This is the only module that imports pynvml.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpulab.run import Gap, Gpu
from gpulab.sensors.nvidia.devices import ReadableGpu, find_all_devices, find_devices, read_text
from gpulab.sensors.nvidia.gpu_processes import GpuProcess, read_processes
from gpulab.sensors.nvidia.nvml_errors import (
    GPU_IS_LOST,
    GPU_LOST_CODES,
    HIDDEN,
    UNINITIALIZED,
    FailedReadings,
    HiddenReading,
    NvmlFailure,
    cause_of,
    explain_missing_driver,
)
from gpulab.sensors.nvidia.nvml_sensors import COLUMNS, SENSORS, Read, Sensor
from gpulab.sensors.nvidia.xid import XidReader

__all__ = ["COLUMNS", "SENSORS", "Nvml"]


class Nvml:
    """NVML, opened and read. Nothing here raises because a driver, a GPU or a sensor is missing.

    `gpus` are the devices CUDA shows to this process, as far as known from the environment, in CUDA's order; with
    `all_devices`, every GPU and every MIG instance of the machine.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        root: Path = Path("/"),
        *,
        sensors: Sequence[Sensor] = SENSORS,
        all_devices: bool = False,
    ) -> None:
        self.gpus: tuple[Gpu, ...] = ()
        self.driver: str | None = None
        self._environ = dict(os.environ if environ is None else environ)  # a copy, because cells may change it
        self._root = root
        self._sensors, self._all_devices = tuple(sensors), all_devices
        self._columns = tuple(column for sensor in sensors for column in sensor.columns)
        self._nvml: Any = None
        self._xid_reader: XidReader | None = None
        self._pid: int | None = None  # the process that opened NVML; handles are invalid after a fork
        self._devices: dict[int, ReadableGpu] = {}
        self._reads: dict[tuple[int, Sensor], list[Read]] = {}  # reading functions that still work
        self._cache: dict[tuple[int, Sensor], tuple[int, tuple[float, ...]]] = {}  # time and values of the slow sensors
        self._lost: set[int] = set()
        self._device_gaps: tuple[Gap, ...] = ()
        self._troubles = FailedReadings()

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be measured so far: one gap for each cause."""
        return (*self._device_gaps, *self._troubles.gaps(self.gpus))

    @property
    def available_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that can still be read: all except those the driver has lost."""
        return tuple(gpu for gpu in self.gpus if gpu.index not in self._lost)

    def open(self) -> None:
        """Find the driver and the GPUs; in a forked child, reopen the driver. A second call does nothing."""
        if self._pid == os.getpid():
            return
        if self._pid is not None:
            self._reopen()
            return
        binding = _binding()
        if isinstance(binding, Gap):
            self._device_gaps = (binding,)
            return
        try:
            binding.nvmlInit()
        except binding.NVMLError as error:
            self._device_gaps = (explain_missing_driver(error.value, str(error), self._root),)
            return
        self._nvml, self._pid = binding, os.getpid()
        with contextlib.suppress(binding.NVMLError):
            self.driver = read_text(binding.nvmlSystemGetDriverVersion)
        visible_devices, self._device_gaps = self._find_devices()
        self._devices = {device.gpu.index: device for device in visible_devices}
        self.gpus = tuple(device.gpu for device in visible_devices)
        self._reads = {(gpu.index, sensor): list(sensor.reads) for gpu in self.gpus for sensor in self._sensors}
        self._cache, self._lost = {}, set()
        self._troubles = FailedReadings()

    def close(self) -> None:
        """Close the library; other users of it in this process are not affected. `gpus` and `gaps` remain available."""
        if self._pid == os.getpid():
            with contextlib.suppress(self._nvml.NVMLError):  # somebody else has shut it down
                self._nvml.nvmlShutdown()
        self._pid = None

    def read(self, gpu: Gpu) -> dict[str, float]:
        """Every column of the sensors, by default those of GPU_SAMPLES; NaN if unknown."""
        values = dict.fromkeys(self._columns, math.nan)
        if self._pid is None or gpu.index in self._lost or not self._is_open(gpu):
            return values
        for sensor in self._sensors:
            values_of_sensor = self._value(sensor, self._devices[gpu.index])
            values.update(zip(sensor.columns, values_of_sensor, strict=False))
            if gpu.index in self._lost or self._pid == _REOPEN:
                break
        return values

    def processes(self, gpu: Gpu) -> tuple[GpuProcess, ...] | None:
        """The processes that compute on a GPU; None if the driver does not list them."""
        if self._pid is None or gpu.index in self._lost or not self._is_open(gpu):
            return None
        device = self._devices[gpu.index]
        try:
            return read_processes(self._nvml, device.handle)
        except self._nvml.NVMLError as error:
            self._troubles.note(self._cause(error, device), "processes", gpu.index)
            return None

    def xids(self) -> tuple[tuple[int, int], ...]:
        """Xid errors since the last call: index of the GPU, and number. The first call begins to listen."""
        if self._pid != os.getpid():
            return ()
        if self._xid_reader is None:
            boards = {index: device.board for index, device in self._devices.items() if not device.mig}
            self._xid_reader = XidReader(self._nvml, boards)
        return self._xid_reader.read()

    def is_mig(self, gpu: Gpu) -> bool:
        """Whether this is a MIG instance."""
        return self._devices[gpu.index].mig

    def _find_devices(self) -> tuple[tuple[ReadableGpu, ...], tuple[Gap, ...]]:
        return find_all_devices(self._nvml) if self._all_devices else find_devices(self._nvml, self._environ)

    def _value(self, sensor: Sensor, device: ReadableGpu) -> tuple[float, ...]:
        """Read a sensor, or return its cached values if it was read less than `every_ns` ago."""
        if not sensor.min_interval_ns:
            return self._read_sensor(sensor, device)
        key, now_ns = (device.gpu.index, sensor), time.monotonic_ns()
        read_ns, values = self._cache.get(key, (now_ns - sensor.min_interval_ns, ()))
        if now_ns - read_ns >= sensor.min_interval_ns:
            values = self._read_sensor(sensor, device)
            self._cache[key] = now_ns, values
        return values

    def _read_sensor(self, sensor: Sensor, device: ReadableGpu) -> tuple[float, ...]:
        """The sensor's values, or () if there are none this time."""
        reads = self._reads[device.gpu.index, sensor]
        handle = device.board if sensor.per_board else device.handle
        while reads:
            try:
                return reads[0](self._nvml, handle)
            except HiddenReading:
                self._troubles.note(HIDDEN, sensor.label, device.gpu.index)
                return ()
            except (self._nvml.NVMLError, AttributeError) as error:
                cause = self._cause(error, device)
            if cause.lasting:
                reads.pop(0)
            if not cause.lasting or not reads:
                lost = device.gpu.index in self._lost
                self._troubles.note(cause, "sensors" if lost else sensor.label, device.gpu.index)
                return ()
        return ()

    def _cause(self, error: Exception, device: ReadableGpu) -> NvmlFailure:
        code = getattr(error, "value", None)
        if code is None:  # AttributeError: the binding lacks the function
            return NvmlFailure(
                why=f"this nvidia-ml-py is too old ({error})", fix="pip install -U nvidia-ml-py", lasting=True
            )
        if code in GPU_LOST_CODES:
            self._lost.add(device.gpu.index)
        if code == UNINITIALIZED:
            self._pid = _REOPEN
        return cause_of(code, str(error), mig=device.mig)

    def _is_open(self, gpu: Gpu) -> bool:
        if self._pid != os.getpid():
            self._reopen()
        return self._pid == os.getpid() and gpu.index not in self._lost

    def _reopen(self) -> None:
        """Open NVML again and get new handles of the known GPUs by UUID."""
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            for gpu in self.available_gpus:
                self._troubles.note(cause_of(error.value, str(error)), "sensors", gpu.index)
            return
        self._pid, self._xid_reader = os.getpid(), None
        reopened, _ = self._find_devices()
        by_uuid = {device.gpu.uuid: device for device in reopened}
        for gpu in self.available_gpus:
            if gpu.uuid in by_uuid:
                self._devices[gpu.index] = by_uuid[gpu.uuid]
            else:
                self._lost.add(gpu.index)
                self._troubles.note(cause_of(GPU_IS_LOST, ""), "sensors", gpu.index)


_REOPEN = -1  # in place of a process id: NVML must be opened again


def _binding() -> Any | Gap:
    """The module pynvml of nvidia-ml-py, or a gap that says why it cannot be used."""
    subject = "GPU sensors"
    try:
        import pynvml
    except ImportError:
        return Gap(what=subject, why="the package nvidia-ml-py is not installed", fix="pip install nvidia-ml-py")
    # Two old packages install a module of the same name; neither has both of these functions.
    if hasattr(pynvml, "_nvmlGetFunctionPointer") and hasattr(pynvml, "nvmlInitWithFlags"):
        return pynvml
    old = " and ".join(name for name in ("pynvml", "nvidia-ml-py3") if _is_installed(name)) or "another package"
    return Gap(
        what=subject,
        why=f"an old package ({old}) hides nvidia-ml-py: both name their module pynvml",
        fix="pip uninstall -y pynvml nvidia-ml-py3; pip install --force-reinstall nvidia-ml-py; restart the kernel",
    )


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
