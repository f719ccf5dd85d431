"""Publish readings of `gpulab watch` and summaries of runs as OpenTelemetry metrics.

The names are those of OpenTelemetry's conventions for hardware where there are any. The program configures the
exporter (OTLP, Prometheus, console) with its MeterProvider, as for its other metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions
from opentelemetry.metrics import Observation as Point

from gpulab.questions.run_names import RunLike
from gpulab.run_summary import summary
from gpulab.watch.observation import Observation
from gpulab.watch.process_names import ProcessName
from gpulab.watch.schema import HOST_KIND

# Name, unit, column of the history, and the function of the meter that creates it.
SERVED = (
    ("hw.gpu.utilization", "1", "util_frac", "gauge"),
    ("hw.gpu.memory.usage", "By", "memory_used_bytes", "gauge"),
    ("hw.power", "W", "power_w", "gauge"),
    ("hw.temperature", "Cel", "temperature_c", "gauge"),
    ("hw.energy", "J", "energy_j", "counter"),
    ("hw.errors", "{error}", "ecc_uncorrected", "counter"),
    ("gpulab.gpu.sm_active", "1", "sm_active_frac", "gauge"),
    ("gpulab.gpu.sm_clock", "MHz", "sm_clock_mhz", "gauge"),
)


class WatchMetrics:
    """A listener of the watcher: `watcher.listen(WatchMetrics())` publishes each GPU's readings.

    meter_provider: by default, the global one.
    """

    def __init__(self, meter_provider: Any = None) -> None:
        meter = metrics.get_meter("gpulab", meter_provider=meter_provider)
        self._latest: Observation | None = None
        for name, unit, column, kind in SERVED:
            create = meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
            create(name, callbacks=[self._reader(column)], unit=unit)

    def __call__(self, observation: Observation, names: Mapping[int, ProcessName]) -> None:
        """Take one observation."""
        self._latest = observation

    def _reader(self, column: str) -> Callable[[CallbackOptions], Iterable[Point]]:
        def read(options: CallbackOptions) -> Iterator[Point]:
            for reading in self._latest.readings if self._latest is not None else ():
                value = reading.values.get(column, math.nan)
                if reading.device.kind != HOST_KIND and not math.isnan(value):
                    attributes = {"hw.id": reading.device.uid, "hw.name": reading.device.name, "hw.type": "gpu"}
                    yield Point(value, attributes)

        return read


def log_run(run: RunLike, meter_provider: Any = None) -> None:
    """Publish the numbers of `run.summary()` as gauges `gpulab.run.NAME`, with verdict and rule as attributes."""
    meter = metrics.get_meter("gpulab", meter_provider=meter_provider)
    fields = summary(run)
    attributes = {f"gpulab.{name}": value for name, value in fields.items() if isinstance(value, str)}
    for name, value in fields.items():
        if not isinstance(value, str):
            meter.create_gauge(f"gpulab.run.{name}").set(float(value), attributes)
