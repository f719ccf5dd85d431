"""What other programs had of the cores while the loop ran, where there were too few for all; step by step as well."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.intervals import Ints
from gpulab.run import Run

SCARCE_FRAC = 0.85  # load of all cores from which one program's work is at the cost of another's
DELAYED_FRAC = 0.05  # of the time without a core; less costs a step less than that
CROWDED = 0.2  # so many cores' worth of others make steps longer; an idle machine uses up to 0.1

Floats = NDArray[np.float64]


def other_cores(run: Run, steps: Steps, which: Mask) -> float | None:
    """How many cores' time other programs took in these steps while no core was free; None if unknown."""
    crowd = crowding(run, steps)
    lasted = steps.dur_ns[which]
    return float(np.average(crowd[which], weights=lasted)) if crowd is not None and lasted.sum() > 0 else None


def crowding(run: Run, steps: Steps) -> Floats | None:
    """For each step, how many cores other programs used while none was free; None where it is not told."""
    samples, here = run.host_rows, _cores(run)
    load = samples["cpu_frac"][1:]
    if here is None or len(samples) < 3 or np.isnan(load).all():
        return None
    at = samples["at_ns"]
    took_s = np.maximum(np.diff(at), 1) / 1e9
    own = np.diff(samples["process_cpu_s"]) / took_s
    workers = np.maximum(np.nan_to_num(np.diff(samples["worker_cpu_s"])), 0) / took_s  # they take theirs along
    delayed = np.diff(samples["main_delayed_s"]) / took_s
    # Where nobody works for the recorded thread, it is disturbed only if it had to wait for a core itself.
    alone = ~(samples["workers"][1:] > 0)
    harmed = (load >= SCARCE_FRAC) & ~(alone & (delayed < DELAYED_FRAC))
    others = np.where(harmed, np.maximum(load * here - own - workers, 0), 0)
    seen = np.append(0.0, np.cumsum(np.nan_to_num(others) * took_s))
    # The sample before and the one after count as well: a program that comes or goes does so between two of them.
    around = int(np.median(np.diff(at)))
    opens, closes = steps.start_ns - around, steps.end_ns + around
    return np.asarray((_until(seen, at, closes) - _until(seen, at, opens)) / (closes - opens) * 1e9, np.float64)


def calm(run: Run, steps: Steps) -> Mask:
    """The steps that no other program disturbed; all of them where it is not told."""
    crowd = crowding(run, steps)
    return np.ones(len(steps), bool) if crowd is None else np.asarray(crowd <= CROWDED, bool)


def _until(seen: Floats, at_ns: Ints, when_ns: Ints) -> Floats:
    return np.asarray(np.interp(when_ns, at_ns, seen), np.float64)


def _cores(run: Run) -> float | None:
    return run.machine.cores or run.machine.cores_allowed
