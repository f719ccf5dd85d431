"""Operators that wait for a core, because other programs compute on the same cores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.host.cpu_contention import counter_rate, host_samples_in_loop
from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.host.other_programs import shared_cores_used_by_others
from gpulab.analysis.steps.detection import Steps, burst_means
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints
from gpulab.run import Run
from gpulab.run_facts import count_from_fact
from gpulab.tables import EventKind

_SHORT_NS = 200_000  # shorter operators run on one thread, or did not wait
_FEW_WAITS = 2.5  # an operator that is at most so many times as long as one wait consists of little else
_MIN_STEPS = 20  # untraced ones, whose times are compared
_FAST_FRAC = 0.1
_RARE_FRAC = 0.01  # of the steps, the longest, may have another cause: an evaluation, a checkpoint


@dataclass(frozen=True, kw_only=True)
class CoreSharing:
    """Cores that other programs use while a loop runs, and what a parallel operator costs then."""

    cores: float  # that this process may use
    others: float  # cores used by other programs while none was free
    threads: int  # of PyTorch
    delayed_frac: float  # share of the time in which the main thread waited for a core
    parallel_ns: int | None  # an addition on all threads, right after the loop
    serial_ns: int | None  # the same on one thread

    @property
    def slowdown(self) -> float:
        """How many times as long an addition takes on all threads as on one; 1 if that was not measured."""
        return self.parallel_ns / self.serial_ns if self.parallel_ns and self.serial_ns else 1.0


@dataclass(frozen=True, kw_only=True)
class DelayedOperators:
    """Operators of a recorded step that may have waited for a core."""

    short_ns: int  # those that take little more than such a wait
    long_ns: int  # longer ones, of which an unknown part is a wait
    count: int


@dataclass(frozen=True, kw_only=True)
class UnevenSteps:
    """Untraced steps: in some of them, threads wait for each other, and in others, they do not."""

    fast_ns: int  # a tenth of the steps takes at most as long
    mean_ns: int

    @property
    def slowdown(self) -> float:
        """How many times as long the mean step takes as a fast one."""
        return self.mean_ns / max(1, self.fast_ns)


def uneven_steps(steps: Steps) -> UnevenSteps | None:
    """Return how uneven the untraced steps are; None if there are too few."""
    step_ns = burst_means(steps.dur_ns[steps.unprofiled], steps.burst)
    if len(step_ns) < _MIN_STEPS:
        return None
    return UnevenSteps(fast_ns=round(np.quantile(step_ns, _FAST_FRAC)), mean_ns=round(usual_mean_ns(step_ns)))


def usual_mean_ns(step_ns: Ints) -> float:
    """Return the mean of these step times without the longest ones, which are rare."""
    return float(step_ns[step_ns <= np.quantile(step_ns, 1 - _RARE_FRAC)].mean())


def core_sharing(run: Run, steps: Steps) -> CoreSharing | None:
    """Return how this process shares its cores with other programs; None if that is unknown."""
    threads, cores = count_from_fact(run, "threads"), run.machine.cores_allowed
    others = shared_cores_used_by_others(run, steps)
    delayed_frac = counter_rate(host_samples_in_loop(run, steps), "main_delayed_s")
    if not threads or not cores or others is None or delayed_frac is None:
        return None
    return CoreSharing(
        cores=cores,
        others=others,
        threads=threads,
        delayed_frac=min(delayed_frac, 1.0),
        parallel_ns=count_from_fact(run, "parallel_add_ns"),
        serial_ns=count_from_fact(run, "serial_add_ns"),
    )


def delayed_operators(run: Run, steps: Steps, ledger: Ledger) -> DelayedOperators:
    """Return the operators of a mean interior step that took so long that they may have waited for a core."""
    ops = rows_in_interior(run.event_rows.of_kind(EventKind.OP), steps)
    self_ns = innermost(ops).per_row_ns(len(ops))
    waits = self_ns >= _SHORT_NS
    is_long = self_ns > _FEW_WAITS * (count_from_fact(run, "parallel_add_ns") or 0)
    interior = max(1, int(steps.interior.sum()))
    return DelayedOperators(
        short_ns=round(int(self_ns[waits & ~is_long].sum()) / interior),
        long_ns=round(int(self_ns[waits & is_long].sum()) / interior),
        count=round(int(waits.sum()) / interior),
    )
