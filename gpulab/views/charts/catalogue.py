"""The list of charts. To add a chart, write its function and add a line here."""

from __future__ import annotations

from collections.abc import Callable

from gpulab.views.charts.copies.copy_rates import copy_rates
from gpulab.views.charts.data.loader_workers import loader_workers
from gpulab.views.charts.drawing.chart import Chart
from gpulab.views.charts.host.idle_flame import idle_flame
from gpulab.views.charts.host.queue_depth import queue_depth
from gpulab.views.charts.kernels.batch_sweep import batch_sweep
from gpulab.views.charts.kernels.kernel_times import kernels
from gpulab.views.charts.kernels.roofline import roofline
from gpulab.views.charts.machine.gpus import gpu_comparison
from gpulab.views.charts.machine.sensors import sensors
from gpulab.views.charts.memory.memory_kinds import memory_kinds
from gpulab.views.charts.memory.memory_over_time import memory_over_time, memory_phases
from gpulab.views.charts.ranks.rank_skew import rank_skew
from gpulab.views.charts.steps.ledger import ledger
from gpulab.views.charts.steps.predicted import predicted
from gpulab.views.charts.steps.step_times import step_times

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
