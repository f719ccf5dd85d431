"""All sensors of a session behind one interface: start, read, stop, rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import NamedTuple

import numpy as np

from gpulab.rows import Rows
from gpulab.run import Gap, Gpu
from gpulab.sensors.host.frames import called_function, library_path, user_line
from gpulab.sensors.host.process import HostSensors
from gpulab.sensors.host.threads import ThreadReader
from gpulab.sensors.host.workers import WorkerReader
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.sensors.sampler import Reader, Sampler, Tick
from gpulab.sensors.samples import Samples
from gpulab.sensors.thread_frames import current_frame
from gpulab.tables import GPU_SAMPLES, HOST_SAMPLES

PERIOD_NS = 100_000_000


@dataclass(frozen=True, kw_only=True)
class GpuReading:
    """Latest reading of one GPU: a value for each column of its sensors."""

    gpu: Gpu
    values: Mapping[str, float]

    def value(self, column: str) -> float | None:
        """The value of this column; None if unknown."""
        return _or_none(self.values.get(column, math.nan))

    @property
    def util_frac(self) -> float | None:
        """GPU utilisation, shown by the live panel."""
        return self.value("util_frac")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Latest reading of all sensors; None if unknown or not read yet."""

    gpus: tuple[GpuReading, ...] = ()
    core_fracs: tuple[float, ...] = ()
    rss_bytes: float | None = None
    workers: int | None = None
    frame: str | None = None


class _Position(NamedTuple):
    """Number of samples that `new_rows` has returned."""

    host: int = 0
    gpu: int = 0
    worker: int = 0


class Sensors:
    """Samples GPUs, the host and the calling thread's current line, from `start()` to `stop()`.

    `worker_pids` returns the current DataLoader workers; `on_tick` is called after each round in the sampler's thread;
    `evaluation` returns what shows that a stack evaluates a model. An exception of any of them becomes a gap.
    """

    def __init__(
        self,
        worker_pids: Callable[[], Sequence[int]] = tuple,
        on_tick: Callable[[], None] | None = None,
        *,
        period_ns: int = PERIOD_NS,
        nvml: Nvml | None = None,
        host: HostSensors | None = None,
        evaluation: Callable[[FrameType | None], str | None] | None = None,
    ) -> None:
        self._worker_pids = worker_pids
        self._evaluation = evaluation
        self._nvml = nvml or Nvml()
        self._host = host or HostSensors()
        self._threads = ThreadReader(threading.get_ident())
        self._workers = WorkerReader()
        self._latest = Reading()
        self._gpu_samples = Samples(GPU_SAMPLES)
        self._host_samples = Samples(HOST_SAMPLES)
        self._position = _Position()
        # The host first: a hanging driver must not falsify the times of the host's samples.
        readers = [
            Reader(label="CPU, memory and workers", read=self._read_host),
            Reader(label="GPU sensors", read=self._read_gpus),
        ]
        if on_tick is not None:
            readers.append(Reader(label="the live panel", read=lambda _: on_tick()))
        self._sampler = Sampler(readers, period_ns=period_ns)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs being read; `device` of the rows is an index into these by default."""
        return self._nvml.gpus

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be measured so far, and why: one gap for each cause."""
        return (*self._nvml.gaps, *self._host.gaps, *self._threads.gaps, *self._workers.gaps, *self._sampler.gaps)

    def start(self) -> None:
        """Start; the calling thread is the one whose current line is sampled."""
        self._threads = ThreadReader(threading.get_ident())
        self._nvml.open()
        self._sampler.start()

    def stop(self) -> None:
        """Stop after one last reading; no thread and no handle remains."""
        self._host.refresh()  # for the last reading
        try:
            self._sampler.stop()
        finally:
            self._host.close()
            self._threads.close()
            self._nvml.close()

    def latest(self) -> Reading:
        """The latest readings; callable from any thread."""
        return self._latest

    def gpu_rows(self, began_ns: int, gpus: Sequence[Gpu] | None = None) -> Rows:
        """GPU_SAMPLES on the clock of a run that began at this UNIX time.

        `device` is the index in `gpus`, matched by UUID: pass the GPUs of the run's machine. Other samples are dropped.
        """
        return self._gpu_rows_from(0, began_ns, gpus)

    def host_rows(self, began_ns: int) -> Rows:
        """HOST_SAMPLES on the clock of a run that began at this UNIX time."""
        return HOST_SAMPLES.rows(self._host_samples.columns(began_ns))

    def worker_rows(self, began_ns: int) -> Rows:
        """WORKER_SAMPLES on the clock of a run that began at this UNIX time."""
        return self._workers.rows(began_ns)

    def new_rows(self) -> tuple[Rows, ...]:
        """Samples since the previous call, with UNIX times; call it in the sampler's thread, from `on_tick`."""
        first = self._position
        self._position = _Position(len(self._host_samples), len(self._gpu_samples), self._workers.count)
        return (
            HOST_SAMPLES.rows(self._host_samples.columns(0, first.host)),
            self._gpu_rows_from(first.gpu, 0, None),
            self._workers.rows(0, first.worker),
        )

    def _gpu_rows_from(self, first: int, began_ns: int, gpus: Sequence[Gpu] | None) -> Rows:
        columns = self._gpu_samples.columns(began_ns, first)
        indices = {gpu.uuid or gpu.name: index for index, gpu in enumerate(self.gpus if gpus is None else gpus)}
        index_of = np.array([indices.get(gpu.uuid or gpu.name, -1) for gpu in self.gpus], np.int16)
        columns["device"] = index_of[columns["device"]]
        rows = GPU_SAMPLES.rows(columns)
        return rows.select(rows["device"] >= 0)

    def _read_host(self, tick: Tick) -> None:
        # The frame first: the main thread moves on while the rest is read.
        innermost = current_frame(self._threads.recorded)
        frame = user_line(innermost)
        library = {"called": called_function(innermost), "library_path": library_path(innermost)}
        evaluation = self._evaluation(innermost) if self._evaluation is not None else None
        del innermost  # it would keep the values of its variables alive
        self._workers.set_pids(self._worker_pids())
        values = {**self._threads.read(), **self._host.read(), **self._workers.read(tick.at_ns)}
        texts = {"frame": frame, **library, "evaluation": evaluation, "others_frame": self._threads.busiest}
        self._host_samples.append({**tick._asdict(), **values, **texts})
        self._latest = Reading(
            gpus=self._latest.gpus,
            core_fracs=self._host.core_fracs,
            rss_bytes=_or_none(values["rss_bytes"]),
            workers=int(values["workers"]),
            frame=frame,
        )

    def _read_gpus(self, tick: Tick) -> None:
        answering = {gpu.index for gpu in self._nvml.available_gpus}
        readings = []
        for gpu in self._nvml.gpus:
            values = self._nvml.read(gpu)
            if gpu.index in answering:
                self._gpu_samples.append({**tick._asdict(), "device": gpu.index, **values})
            readings.append(GpuReading(gpu=gpu, values=values))
        self._latest = replace(self._latest, gpus=tuple(readings))


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def samples_until(samples: Rows, span_ns: int) -> Rows:
    """Return the samples within a run of this length: the sampler takes one more when it stops."""
    return samples.select(samples["at_ns"] <= span_ns)
