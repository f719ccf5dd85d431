"""Cores used by other programs while the loop ran and no core was free, in total and per step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.intervals import Ints
from gpulab.run import Run

SCARCE_FRAC = 0.85  # load of all cores from which programs slow each other down
DELAYED_FRAC = 0.05  # share of the time without a core that counts as disturbed
DISTURBING_CORES = 0.2  # other programs that use this many cores make steps longer; an idle machine uses up to 0.1

Floats = NDArray[np.float64]


def cores_used_by_others(run: Run, steps: Steps, mask: Mask) -> float | None:
    """Return how many cores other programs used in these steps while no core was free; None if unknown."""
    cores = cores_used_by_others_per_step(run, steps)
    durations_ns = steps.dur_ns[mask]
    return (
        float(np.average(cores[mask], weights=durations_ns)) if cores is not None and durations_ns.sum() > 0 else None
    )


def shared_cores_used_by_others(run: Run, steps: Steps) -> float | None:
    """Return how many cores other programs used in all steps while none was free; None if unknown.

    None, too, if this process may not use all cores: others on the remaining ones do not slow it down.
    """
    cores = _cores(run)
    others = cores_used_by_others(run, steps, np.ones(len(steps), bool))
    if cores is None or others is None or (run.machine.cores_allowed or cores) < cores:
        return None
    return min(others, cores)


def cores_used_by_others_per_step(run: Run, steps: Steps) -> Floats | None:
    """Return, for each step, how many cores other programs used while no core was free; None if unknown.

    Unknown, too, for a rank of a job: other ranks of the job may be those programs.
    """
    if run.rank is not None:
        return None
    samples, cores = run.host_rows, _cores(run)
    load = samples["cpu_frac"][1:]
    if cores is None or len(samples) < 3 or np.isnan(load).all():
        return None
    at = samples["at_ns"]
    interval_s = np.maximum(np.diff(at), 1) / 1e9
    own_cores = np.diff(samples["process_cpu_s"]) / interval_s
    workers = (
        np.maximum(np.nan_to_num(np.diff(samples["worker_cpu_s"])), 0) / interval_s
    )  # CPU time of workers that end is lost
    delayed = np.diff(samples["main_delayed_s"]) / interval_s
    # Without workers, the recorded thread is disturbed only if it had to wait for a core itself.
    without_workers = ~(samples["workers"][1:] > 0)
    disturbed = (load >= SCARCE_FRAC) & ~(without_workers & (delayed < DELAYED_FRAC))
    others = np.where(disturbed, np.maximum(load * cores - own_cores - workers, 0), 0)
    cumulative_s = np.append(0.0, np.cumsum(np.nan_to_num(others) * interval_s))
    # One sample before and after each step counts as well: programs start and stop between two samples.
    around = int(np.median(np.diff(at)))
    starts, ends = steps.start_ns - around, steps.end_ns + around
    return np.asarray(
        (_cumulative_at(cumulative_s, at, ends) - _cumulative_at(cumulative_s, at, starts)) / (ends - starts) * 1e9,
        np.float64,
    )


def undisturbed_steps(run: Run, steps: Steps) -> Mask:
    """Return a mask of the steps undisturbed by other programs; all steps if unknown."""
    cores = cores_used_by_others_per_step(run, steps)
    return np.ones(len(steps), bool) if cores is None else np.asarray(cores <= DISTURBING_CORES, bool)


def _cumulative_at(cumulative_s: Floats, at_ns: Ints, time_ns: Ints) -> Floats:
    return np.asarray(np.interp(time_ns, at_ns, cumulative_s), np.float64)


def _cores(run: Run) -> float | None:
    return run.machine.cores or run.machine.cores_allowed
