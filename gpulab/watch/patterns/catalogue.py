"""All kinds of patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpulab.watch.patterns.frame import HistoryFrame
from gpulab.watch.patterns.idle_hours import abandoned_processes, idle_nights, idle_weekends, unused_gpus
from gpulab.watch.patterns.job_patterns import idle_gpus_of_jobs, memory_restarts, regular_dips
from gpulab.watch.patterns.machine_patterns import heat, lower_clocks, repeated_errors
from gpulab.watch.patterns.pattern import Pattern

FINDERS: tuple[Callable[[HistoryFrame], Iterator[Pattern]], ...] = (
    idle_nights,
    idle_weekends,
    abandoned_processes,
    unused_gpus,
    regular_dips,
    idle_gpus_of_jobs,
    memory_restarts,
    lower_clocks,
    heat,
    repeated_errors,
)


def find_patterns(frame: HistoryFrame) -> tuple[Pattern, ...]:
    """Return all patterns of a time, those that waste most GPU-hours first."""
    patterns = [pattern for finder in FINDERS for pattern in finder(frame)]
    return tuple(sorted(patterns, key=lambda pattern: -(pattern.wasted_gpu_h or 0.0)))
