"""Activity of SMs, tensor cores and memory by the driver's performance counters (GPM), on Hopper and newer GPUs.

The counters are shared: CUPTI and DCGM use them, too. Only `gpulab watch` reads them, never the recording of a run.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

GPM_COLUMNS = ("sm_active_frac", "tensor_active_frac", "dram_active_frac")
_METRICS = ("NVML_GPM_METRIC_SM_UTIL", "NVML_GPM_METRIC_ANY_TENSOR_UTIL", "NVML_GPM_METRIC_DRAM_BW_UTIL")


class GpmReader:
    """Reads the mean activity since its previous call; the first call for a GPU gives NaN.

    GPM compares two samples. This is the only activity that NVML has for a MIG instance.
    """

    def __init__(self) -> None:
        self._samples: dict[int, Any] = {}  # the previous sample by the address of the handle

    def __call__(self, nvml: Any, gpu: Any) -> tuple[float, ...]:
        """Return a share for each of GPM_COLUMNS. Raises NVMLError if the GPU or the driver has no GPM."""
        sample = nvml.nvmlGpmSampleAlloc()
        try:
            _take(nvml, gpu, sample)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(sample)
            raise
        address = ctypes.cast(gpu, ctypes.c_void_p).value or 0
        before, self._samples[address] = self._samples.get(address), sample
        if before is None:
            return (math.nan,) * len(GPM_COLUMNS)
        try:
            return _activity(nvml, before, sample)
        finally:
            nvml.nvmlGpmSampleFree(before)


def _take(nvml: Any, gpu: Any, sample: Any) -> None:
    if not nvml.nvmlDeviceIsMigDeviceHandle(gpu):
        nvml.nvmlGpmSampleGet(gpu, sample)
        return
    board = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu)
    nvml.nvmlGpmMigSampleGet(board, nvml.nvmlDeviceGetGpuInstanceId(gpu), sample)


def _activity(nvml: Any, before: Any, after: Any) -> tuple[float, ...]:
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version = nvml.NVML_GPM_METRICS_GET_VERSION
    request.numMetrics = len(_METRICS)
    request.sample1, request.sample2 = before, after
    for index, name in enumerate(_METRICS):
        request.metrics[index].metricId = getattr(nvml, name)
    nvml.nvmlGpmMetricsGet(request)
    answers = [request.metrics[index] for index in range(len(_METRICS))]
    return tuple(answer.value / 100 if answer.nvmlReturn == 0 else math.nan for answer in answers)  # percents
