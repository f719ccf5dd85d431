"""Serve the readings of `gpulab watch` to Prometheus, under the names of NVIDIA's DCGM exporter where it has them.

    gpulab watch --prometheus 9400

Dashboards and alerts that were written for the DCGM exporter work with it. A reading that is missing is not served.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gpulab.errors import GpulabError
from gpulab.watch.observation import DeviceReading, Observation
from gpulab.watch.process_names import ProcessName
from gpulab.watch.schema import HOST_KIND, MIG_KIND

_MIB = 2.0**-20


@dataclass(frozen=True, kw_only=True)
class Served:
    """One metric: its name, its column in the history, the factor to its unit, and its meaning."""

    name: str
    column: str
    meaning: str
    factor: float = 1.0
    kind: str = "gauge"


SERVED = (
    Served(name="DCGM_FI_DEV_GPU_UTIL", column="util_frac", factor=100, meaning="GPU utilization (in %)."),
    Served(
        name="DCGM_FI_DEV_MEM_COPY_UTIL", column="memory_util_frac", factor=100, meaning="Memory utilization (in %)."
    ),
    Served(name="DCGM_FI_DEV_FB_USED", column="memory_used_bytes", factor=_MIB, meaning="Device memory used (in MiB)."),
    Served(name="DCGM_FI_DEV_POWER_USAGE", column="power_w", meaning="Power draw (in W)."),
    Served(name="DCGM_FI_DEV_SM_CLOCK", column="sm_clock_mhz", meaning="SM clock frequency (in MHz)."),
    Served(name="DCGM_FI_DEV_MEM_CLOCK", column="memory_clock_mhz", meaning="Memory clock frequency (in MHz)."),
    Served(name="DCGM_FI_DEV_GPU_TEMP", column="temperature_c", meaning="GPU temperature (in C)."),
    Served(name="DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", column="throttle_bits", meaning="Throttle reasons, a bit mask."),
    Served(
        name="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", column="energy_j", factor=1e3, kind="counter",
        meaning="Energy since the driver was loaded (in mJ).",
    ),
    Served(
        name="DCGM_FI_DEV_POWER_VIOLATION", column="power_held_s", factor=1e9, kind="counter",
        meaning="Time throttled by the power limit (in ns).",
    ),
    Served(
        name="DCGM_FI_DEV_THERMAL_VIOLATION", column="thermal_held_s", factor=1e9, kind="counter",
        meaning="Time throttled by heat (in ns).",
    ),
    Served(
        name="DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", column="ecc_corrected", kind="counter",
        meaning="Corrected memory errors since the driver was loaded.",
    ),
    Served(
        name="DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", column="ecc_uncorrected", kind="counter",
        meaning="Uncorrected memory errors since the driver was loaded.",
    ),
    Served(
        name="DCGM_FI_PROF_PCIE_RX_BYTES", column="pcie_received_bytes", kind="counter",
        meaning="Bytes that the GPU received over PCIe.",
    ),
    Served(
        name="DCGM_FI_PROF_PCIE_TX_BYTES", column="pcie_sent_bytes", kind="counter",
        meaning="Bytes that the GPU sent over PCIe.",
    ),
    Served(name="DCGM_FI_PROF_SM_ACTIVE", column="sm_active_frac", meaning="Share of time an SM was active (0-1)."),
    Served(
        name="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", column="tensor_active_frac",
        meaning="Share of time the tensor cores were active (0-1).",
    ),
    Served(
        name="DCGM_FI_PROF_DRAM_ACTIVE", column="dram_active_frac", meaning="Share of the memory bandwidth used (0-1)."
    ),
)  # fmt: skip
MEMORY_FREE = "DCGM_FI_DEV_FB_FREE"
PROCESS_MEMORY, PROCESS_UTIL = "gpulab_process_memory_bytes", "gpulab_process_sm_utilization"
HOST_CPU = "gpulab_host_cpu_utilization"
LABELS = ("gpu", "UUID", "device", "modelName", "Hostname")


class WatchCollector(Collector):
    """A listener of the watcher, which gives Prometheus the latest observation."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._latest: tuple[Observation, Mapping[int, ProcessName]] | None = None

    def __call__(self, observation: Observation, names: Mapping[int, ProcessName]) -> None:
        """Take one observation."""
        self._latest = observation, names

    def collect(self) -> Iterator[Metric]:
        """Return all metrics; called for each scrape."""
        if self._latest is None:
            return
        observation, names = self._latest
        gpus = [reading for reading in observation.readings if reading.device.kind != HOST_KIND and not reading.why]
        for served in SERVED:
            yield _metric(served, [(self._labels(index, gpu), gpu) for index, gpu in enumerate(gpus)])
        yield from self._memory_free(gpus)
        yield from self._processes(gpus, names)
        host = next((reading for reading in observation.readings if reading.device.kind == HOST_KIND), None)
        if host is not None and not math.isnan(host.values["cpu_frac"]):
            metric = Metric(HOST_CPU, "Mean load of all CPU cores (0-1).", "gauge")
            metric.add_sample(HOST_CPU, {"Hostname": self._host}, host.values["cpu_frac"])
            yield metric

    def _labels(self, index: int, reading: DeviceReading) -> dict[str, str]:
        device = reading.device
        name = f"mig{index}" if device.kind == MIG_KIND else f"nvidia{index}"
        return dict(zip(LABELS, (str(index), device.uid, name, device.name, self._host), strict=True))

    def _memory_free(self, gpus: list[DeviceReading]) -> Iterator[Metric]:
        metric = Metric(MEMORY_FREE, "Device memory free (in MiB).", "gauge")
        for index, gpu in enumerate(gpus):
            used_bytes = gpu.values.get("memory_used_bytes", math.nan)
            if gpu.device.memory_bytes and not math.isnan(used_bytes):
                metric.add_sample(MEMORY_FREE, self._labels(index, gpu), (gpu.device.memory_bytes - used_bytes) * _MIB)
        yield metric

    def _processes(self, gpus: list[DeviceReading], names: Mapping[int, ProcessName]) -> Iterator[Metric]:
        memory = Metric(PROCESS_MEMORY, "Device memory of a process.", "gauge")
        use = Metric(PROCESS_UTIL, "Share of time with a kernel of a process resident (0-1).", "gauge")
        for index, gpu in enumerate(gpus):
            for process in gpu.processes or ():
                name = names[process.pid]
                labels = {
                    **self._labels(index, gpu),
                    "pid": str(process.pid),
                    "user": name.user or "",
                    "name": name.name,
                }
                if process.memory_bytes is not None:
                    memory.add_sample(PROCESS_MEMORY, labels, process.memory_bytes)
                if process.sm_frac is not None:
                    use.add_sample(PROCESS_UTIL, labels, process.sm_frac)
        yield from (memory, use)


def serve(address: str, port: int, name: str) -> WatchCollector:
    """Serve on this address and port; return the listener for the watcher. `name`: of the host, as a label.

    Raises GpulabError if the port is taken.
    """
    registry = CollectorRegistry()
    collector = WatchCollector(name)
    registry.register(collector)
    try:
        start_http_server(port, address, registry=registry)
    except OSError as problem:
        raise GpulabError(
            f"Port {port} cannot be served.",
            why=problem.strerror or str(problem),
            fix="choose another one: gpulab watch --prometheus 9401",
        ) from problem
    return collector


def _metric(served: Served, readings: list[tuple[dict[str, str], DeviceReading]]) -> Metric:
    # prometheus_client would add "_total" to the names of counters, which those of the DCGM exporter lack.
    metric = Metric(served.name, served.meaning, "unknown" if served.kind == "counter" else served.kind)
    for labels, reading in readings:
        value = reading.values.get(served.column, math.nan)
        if not math.isnan(value):
            metric.add_sample(served.name, labels, value * served.factor)
    return metric
