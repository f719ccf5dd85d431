"""Sensors of an NVIDIA GPU: the columns each one fills, and the NVML function that reads it.

To add a sensor, add its column in gpulab.sensor_tables and its reading function in SENSORS.
The functions here receive the binding and a handle; they import nothing of NVIDIA's and have no state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpulab.sensor_tables import DEVICE_SAMPLES, GPU_SAMPLES
from gpulab.sensors.nvidia.nvml_errors import NOT_SUPPORTED
from gpulab.sensors.nvidia.other_processes import others_memory, others_utilisation

_LABELS = {column.name: column.label for table in (DEVICE_SAMPLES, GPU_SAMPLES) for column in table.columns}
SECOND_NS = 1_000_000_000
Read = Callable[[Any, Any], tuple[float, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sensor:
    """A reading of a GPU: the columns of GPU_SAMPLES or DEVICE_SAMPLES it fills, and the functions that can read them.

    Each of `reads` takes pynvml and a handle and returns a value per column, in the column's unit. The first one is
    preferred; the next is used if the driver, or this nvidia-ml-py, does not support the one before.
    """

    columns: tuple[str, ...]
    reads: tuple[Read, ...]
    per_board: bool = False  # a MIG instance shares this with its GPU, so the GPU is read
    min_interval_ns: int = 0  # shortest time between two readings, for slow ones; the value is reused in between

    @property
    def label(self) -> str:
        """Display name: the label of its first column."""
        return _LABELS[self.columns[0]]


def _utilisation(nvml: Any, gpu: Any) -> tuple[float, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)  # whole percents
    return rates.gpu / 100, rates.memory / 100


def _memory_v2(nvml: Any, gpu: Any) -> tuple[float, ...]:
    # Version 1 counts memory reserved by the driver as used.
    return (_available(nvml, nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).used),)


def _memory(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (_available(nvml, nvml.nvmlDeviceGetMemoryInfo(gpu).used),)


def _power_instant(nvml: Any, gpu: Any) -> tuple[float, ...]:
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [nvml.NVML_FI_DEV_POWER_INSTANT])
    if answer.nvmlReturn:
        raise nvml.NVMLError(answer.nvmlReturn)
    return (answer.value.uiVal / 1e3,)  # mW


def _power(nvml: Any, gpu: Any) -> tuple[float, ...]:
    # From Ampere on, this is an average over one second.
    return (nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,)  # mW


def _sm_clock(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)),)


def _memory_clock(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)),)


def _temperature_v(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetTemperatureV(gpu, nvml.NVML_TEMPERATURE_GPU)),)


def _temperature(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),)


def _event_reasons(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)),)


def _throttle_reasons(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)),)


def _energy(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (_available(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1e3,)  # mJ


def _link_generation(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu)),)


def _link_width(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (float(nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu)),)


def _power_violation(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (_violation_s(nvml, gpu, nvml.NVML_PERF_POLICY_POWER),)


def _power_limited(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (_limited_s(nvml, gpu, nvml.NVML_FI_DEV_PERF_POLICY_POWER),)


def _heat_violation(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (_violation_s(nvml, gpu, nvml.NVML_PERF_POLICY_THERMAL),)


def _heat_limited(nvml: Any, gpu: Any) -> tuple[float, ...]:
    return (_limited_s(nvml, gpu, nvml.NVML_FI_DEV_PERF_POLICY_THERMAL),)


def _violation_s(nvml: Any, gpu: Any, policy: int) -> float:
    return _available(nvml, nvml.nvmlDeviceGetViolationStatus(gpu, policy).violationTime) / 1e9  # ns


def _limited_s(nvml: Any, gpu: Any, field: int) -> float:
    # Replaces nvmlDeviceGetViolationStatus, which CUDA 14 is to remove; only the old one documents that it counts ns.
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [field])
    if answer.nvmlReturn:
        raise nvml.NVMLError(answer.nvmlReturn)
    return _available(nvml, answer.value.ullVal) / 1e9


def _memory_errors(nvml: Any, gpu: Any) -> tuple[float, ...]:
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    counts = [nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC) for kind in kinds]
    return tuple(_available(nvml, count) for count in counts)


def field_values(nvml: Any, gpu: Any, fields: tuple[Any, ...], factor: int) -> tuple[float, ...]:
    """Read 64-bit fields, each a number or a pair of number and scope. Raises NVMLError if one is not available."""
    values = []
    for answer in nvml.nvmlDeviceGetFieldValues(gpu, list(fields)):
        if answer.nvmlReturn:
            raise nvml.NVMLError(answer.nvmlReturn)
        values.append(_available(nvml, answer.value.ullVal) * factor)
    return tuple(values)


def _available(nvml: Any, value: int) -> float:
    """Check a 64-bit counter: all bits set is NVML's "not available" without an error."""
    if value == 2**64 - 1:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return float(value)


# PCIe throughput is omitted on purpose: NVML measures it for 20 ms in every call, which would block the sampler.
SENSORS = (
    Sensor(columns=("util_frac", "memory_util_frac"), reads=(_utilisation,)),
    Sensor(columns=("memory_used_bytes",), reads=(_memory_v2, _memory)),
    Sensor(columns=("power_w",), reads=(_power_instant, _power)),
    Sensor(columns=("sm_clock_mhz",), reads=(_sm_clock,), per_board=True),
    Sensor(columns=("memory_clock_mhz",), reads=(_memory_clock,), per_board=True),
    Sensor(columns=("temperature_c",), reads=(_temperature_v, _temperature), per_board=True),
    Sensor(
        columns=("throttle_bits",),
        reads=(_event_reasons, _throttle_reasons),
        per_board=True,
    ),
    Sensor(columns=("energy_j",), reads=(_energy,)),
    Sensor(columns=("link_generation",), reads=(_link_generation,), per_board=True),
    Sensor(columns=("link_width",), reads=(_link_width,), per_board=True),
    Sensor(
        columns=("power_held_s",),
        reads=(_power_violation, _power_limited),
        per_board=True,
    ),
    Sensor(
        columns=("thermal_held_s",),
        reads=(_heat_violation, _heat_limited),
        per_board=True,
    ),
    Sensor(
        columns=("ecc_corrected", "ecc_uncorrected"),
        reads=(_memory_errors,),
        per_board=True,
        min_interval_ns=SECOND_NS,
    ),
    Sensor(columns=("others_memory_bytes",), reads=(others_memory,), min_interval_ns=SECOND_NS),
    Sensor(columns=("others_util_frac",), reads=(others_utilisation,), min_interval_ns=SECOND_NS),
)
COLUMNS = tuple(column for sensor in SENSORS for column in sensor.columns)
