"""Sensors of an NVIDIA GPU that only `gpulab watch` reads: links, memory errors, activity by counters."""

from __future__ import annotations

from typing import Any

from gpulab.sensors.nvidia.gpm import GPM_COLUMNS, GpmReader
from gpulab.sensors.nvidia.nvml_errors import NOT_SUPPORTED
from gpulab.sensors.nvidia.nvml_sensors import SENSORS, Sensor

_RUN_ONLY = ("others_memory_bytes", "others_util_frac")
_KIB = 1024
_ALL_LINKS = 2**32 - 1  # as `scopeId`: the sum of all links


def watch_sensors() -> tuple[Sensor, ...]:
    """The sensors of a run and these; new ones for each watch, because GPM compares with its previous reading."""
    return (
        *(sensor for sensor in SENSORS if not set(sensor.columns) & set(_RUN_ONLY)),
        Sensor(columns=("pcie_received_bytes", "pcie_sent_bytes"), reads=(_pcie,), per_board=True),
        Sensor(columns=("nvlink_received_bytes", "nvlink_sent_bytes"), reads=(_nvlink,), per_board=True),
        Sensor(columns=("ecc_corrected", "ecc_uncorrected"), reads=(_memory_errors,), per_board=True),
        Sensor(columns=GPM_COLUMNS, reads=(GpmReader(),)),
    )


def _pcie(nvml: Any, gpu: Any) -> tuple[float, ...]:
    # These counters, unlike nvmlDeviceGetPcieThroughput, do not block for 20 ms. Both are from the view of the GPU.
    fields = (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES)
    return _fields(nvml, gpu, fields, 1)


def _nvlink(nvml: Any, gpu: Any) -> tuple[float, ...]:
    fields = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
    return _fields(nvml, gpu, tuple((field, _ALL_LINKS) for field in fields), _KIB)


def _memory_errors(nvml: Any, gpu: Any) -> tuple[float, ...]:
    fields = (nvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL, nvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL)
    return _fields(nvml, gpu, fields, 1)


def _fields(nvml: Any, gpu: Any, fields: tuple[Any, ...], factor: int) -> tuple[float, ...]:
    values = []
    for answer in nvml.nvmlDeviceGetFieldValues(gpu, list(fields)):
        if answer.nvmlReturn:
            raise nvml.NVMLError(answer.nvmlReturn)
        if answer.value.ullVal == 2**64 - 1:  # "not available", without an error
            raise nvml.NVMLError(NOT_SUPPORTED)
        values.append(float(answer.value.ullVal) * factor)
    return tuple(values)
