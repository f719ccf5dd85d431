"""Sensors of an NVIDIA GPU that only `gpulab watch` reads: links, activity by counters."""

from __future__ import annotations

from typing import Any

from gpulab.sensors.nvidia.gpm import GPM_COLUMNS, GpmReader
from gpulab.sensors.nvidia.nvml_sensors import SENSORS, Sensor, field_values

_RUN_ONLY = ("others_memory_bytes", "others_util_frac")
_KIB = 1024
_ALL_LINKS = 2**32 - 1  # as `scopeId`: the sum of all links


def watch_sensors() -> tuple[Sensor, ...]:
    """The sensors of a run and these; new ones for each watch, because GPM compares with its previous reading."""
    return (
        *(sensor for sensor in SENSORS if not set(sensor.columns) & set(_RUN_ONLY)),
        Sensor(columns=("pcie_received_bytes", "pcie_sent_bytes"), reads=(_pcie,), per_board=True),
        Sensor(columns=("nvlink_received_bytes", "nvlink_sent_bytes"), reads=(_nvlink,), per_board=True),
        Sensor(columns=GPM_COLUMNS, reads=(GpmReader(),)),
    )


def _pcie(nvml: Any, gpu: Any) -> tuple[float, ...]:
    # These counters, unlike nvmlDeviceGetPcieThroughput, do not block for 20 ms. Both are from the view of the GPU.
    fields = (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES)
    return field_values(nvml, gpu, fields, 1)


def _nvlink(nvml: Any, gpu: Any) -> tuple[float, ...]:
    fields = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
    return field_values(nvml, gpu, tuple((field, _ALL_LINKS) for field in fields), _KIB)
