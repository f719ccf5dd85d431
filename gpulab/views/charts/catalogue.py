"""Every chart there is: to add one, write its function and add its line."""

from __future__ import annotations

from collections.abc import Callable

from gpulab.views.charts.chart import Chart
from gpulab.views.charts.copies import copy_rates
from gpulab.views.charts.gpus_chart import gpu_comparison
from gpulab.views.charts.idle import idle_flame
from gpulab.views.charts.kernels import kernels
from gpulab.views.charts.ledger import ledger
from gpulab.views.charts.memory import memory_over_time, memory_phases
from gpulab.views.charts.memory_kinds import memory_kinds
from gpulab.views.charts.predicted import predicted
from gpulab.views.charts.queue import queue_depth
from gpulab.views.charts.roofline import roofline
from gpulab.views.charts.sensors import sensors
from gpulab.views.charts.skew import rank_skew
from gpulab.views.charts.steps import step_times
from gpulab.views.charts.sweep import batch_sweep
from gpulab.views.charts.workers import loader_workers

CHARTS: tuple[Callable[..., Chart], ...] = (
    ledger,
    step_times,
    kernels,
    roofline,
    memory_phases,
    memory_over_time,
    memory_kinds,
    sensors,
    idle_flame,
    queue_depth,
    copy_rates,
    loader_workers,
    batch_sweep,
    gpu_comparison,
    predicted,
    rank_skew,
)
