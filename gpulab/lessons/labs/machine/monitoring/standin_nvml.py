"""A stand-in for the module `pynvml`, to test code that queries GPUs on a machine that has none.

It has the functions that lesson 17 calls, under their real names, and raises its `NVMLError` where the driver would.
One of its two GPUs gives no power reading, as some virtual GPUs do.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

STATUS_FIELDS = ("name", "memory_total_bytes", "memory_used_bytes", "util_frac", "temperature_c", "power_w")
GIB = 2**30


class StandinNvmlError(Exception):
    """The error of the stand-in, as `pynvml.NVMLError`."""


@dataclass(frozen=True, kw_only=True)
class StandinGpu:
    """The readings of a stand-in GPU, in the units of NVML; None: not supported."""

    name: str
    memory_total: int
    memory_used: int
    util_percent: int
    temperature_c: int
    power_mw: int | None


TWO_GPUS = (
    StandinGpu(
        name="Stand-in A",
        memory_total=80 * GIB,
        memory_used=20 * GIB,
        util_percent=97,
        temperature_c=61,
        power_mw=512_300,
    ),
    StandinGpu(
        name="Stand-in B",
        memory_total=16 * GIB,
        memory_used=1 * GIB,
        util_percent=0,
        temperature_c=34,
        power_mw=None,
    ),
)


def standin_nvml(gpus: tuple[StandinGpu, ...] = TWO_GPUS) -> SimpleNamespace:
    """Return an object with functions of pynvml for these GPUs. Without any, `nvmlInit` fails, as without a driver."""

    def init() -> None:
        if not gpus:
            raise StandinNvmlError("NVML Shared Library Not Found")

    def power(handle: StandinGpu) -> int:
        if handle.power_mw is None:
            raise StandinNvmlError("Not Supported")
        return handle.power_mw

    return SimpleNamespace(
        NVMLError=StandinNvmlError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=init,
        nvmlDeviceGetCount=lambda: len(gpus),
        nvmlDeviceGetHandleByIndex=lambda index: gpus[index],
        nvmlDeviceGetName=lambda handle: handle.name,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=handle.memory_total, used=handle.memory_used),
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=handle.util_percent),
        nvmlDeviceGetTemperature=lambda handle, sensor: handle.temperature_c,
        nvmlDeviceGetPowerUsage=power,
    )
