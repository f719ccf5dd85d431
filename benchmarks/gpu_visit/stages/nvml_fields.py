"""Which fields of NVML can be read here, and how long each reading takes. Nothing is ever set.

gpulab.sensors reads some of these; the others say what it could read: GPM metrics, PCIe throughput, total energy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

Reading = Callable[[Any, Any], Any]
GPM_PERIOD_S = 0.3

READINGS: dict[str, Reading] = {
    "name": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "utilisation": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "memory used": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "BAR1 used": lambda nvml, gpu: nvml.nvmlDeviceGetBAR1MemoryInfo(gpu).bar1Used,
    "power, mW": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu),
    "instant power, mW": lambda nvml, gpu: _field(nvml, gpu, nvml.NVML_FI_DEV_POWER_INSTANT).uiVal,
    "enforced power limit, mW": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu),
    "default power limit, mW": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu),
    "total energy, mJ": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
    "SM clock, MHz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "highest SM clock, MHz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory clock, MHz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "temperature, C": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    "throttle reasons": lambda nvml, gpu: hex(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)),
    "supported throttle reasons": lambda nvml, gpu: hex(nvml.nvmlDeviceGetSupportedClocksEventReasons(gpu)),
    "time throttled by power": lambda nvml, gpu: _violation(nvml, gpu, nvml.NVML_PERF_POLICY_POWER),
    "time throttled by heat": lambda nvml, gpu: _violation(nvml, gpu, nvml.NVML_PERF_POLICY_THERMAL),
    "PCIe generation": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "PCIe width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "PCIe throughput to the host, KB/s": lambda nvml, gpu: nvml.nvmlDeviceGetPcieThroughput(
        gpu, nvml.NVML_PCIE_UTIL_TX_BYTES
    ),
    "PCIe replays": lambda nvml, gpu: nvml.nvmlDeviceGetPcieReplayCounter(gpu),
    "processes": lambda nvml, gpu: len(nvml.nvmlDeviceGetComputeRunningProcesses(gpu)),
    "process utilisation": lambda nvml, gpu: len(nvml.nvmlDeviceGetProcessUtilization(gpu, 0)),
    "persistence mode": lambda nvml, gpu: nvml.nvmlDeviceGetPersistenceMode(gpu),
    "compute mode": lambda nvml, gpu: nvml.nvmlDeviceGetComputeMode(gpu),
    "MIG mode": lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu),
    "ECC mode": lambda nvml, gpu: nvml.nvmlDeviceGetEccMode(gpu),
    "GPM supported": lambda nvml, gpu: bool(nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice),
    "GPM metrics": lambda nvml, gpu: _gpm(nvml, gpu),
}
GPM_METRICS = ("SM_UTIL", "SM_OCCUPANCY", "ANY_TENSOR_UTIL", "DRAM_BW_UTIL", "PCIE_TX_PER_SEC", "PCIE_RX_PER_SEC")


def read_fields() -> dict[str, dict[str, Any]]:
    """Each field's value and the milliseconds of a reading, or the error; {} without NVML."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        return {name: _read(pynvml, gpu, reading) for name, reading in READINGS.items()}
    except pynvml.NVMLError:  # a driver without a GPU
        return {}
    finally:
        pynvml.nvmlShutdown()


def _read(nvml: Any, gpu: Any, reading: Reading) -> dict[str, Any]:
    began_s = time.perf_counter()
    try:
        value = reading(nvml, gpu)
    except (nvml.NVMLError, AttributeError, TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"value": value, "ms": 1e3 * (time.perf_counter() - began_s)}


def _field(nvml: Any, gpu: Any, number: int) -> Any:
    (answer,) = nvml.nvmlDeviceGetFieldValues(gpu, [number])
    if answer.nvmlReturn:
        raise nvml.NVMLError(answer.nvmlReturn)
    return answer.value


def _violation(nvml: Any, gpu: Any, policy: int) -> int:
    return int(nvml.nvmlDeviceGetViolationStatus(gpu, policy).violationTime)


def _gpm(nvml: Any, gpu: Any) -> dict[str, float | str]:
    """GPM metrics between two samples."""
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    try:
        nvml.nvmlGpmSampleGet(gpu, samples[0])
        time.sleep(GPM_PERIOD_S)
        nvml.nvmlGpmSampleGet(gpu, samples[1])
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        query.sample1, query.sample2 = samples
        for number, name in enumerate(GPM_METRICS):
            query.metrics[number].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        nvml.nvmlGpmMetricsGet(query)
        answers = zip(GPM_METRICS, query.metrics, strict=False)
        return {name: metric.value if not metric.nvmlReturn else str(metric.nvmlReturn) for name, metric in answers}
    finally:
        for sample in samples:
            nvml.nvmlGpmSampleFree(sample)
