"""Steps of a loop whose host runs ahead of its GPU: few launches, much work in each, and nobody waits.

CUDA takes some thousand launches before the host has to wait. A loop of a few large kernels is through with its Python
long before the GPU is, and its marks lie as close together as the calls do; what a step takes, the GPU alone knows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.delays import calls_of
from gpulab.analysis.work import device_work
from gpulab.intervals import Ints
from gpulab.run import Run

LEAST_STEPS = 4
AHEAD = 1.1  # the GPU's pace over the host's; where one waits for the other they differ by less


class Paced(NamedTuple):
    """The recorded steps as the GPU worked through them: one fewer than the host's, as the first has no beginning."""

    start_ns: Ints
    end_ns: Ints


def paced(run: Run, start_ns: Ints, end_ns: Ints) -> Paced | None:
    """Where the GPU's steps are, for recorded steps that follow one another; None unless the host runs ahead of it."""
    if len(start_ns) < LEAST_STEPS or not len(run.event_rows):
        return None
    done = _done_ns(run, start_ns, end_ns)
    if done is None:
        return None
    took = np.diff(done)
    if np.median(took) <= AHEAD * np.median(end_ns - start_ns):
        return None
    return Paced(done[:-1], done[1:])


def _done_ns(run: Run, start_ns: Ints, end_ns: Ints) -> Ints | None:
    """When the work that each step called for was done; None where a step called for none, as then nothing is told."""
    work = device_work(run)
    call = calls_of(work)
    work, call = work.where(call >= 0), call[call >= 0]
    called_ns = run.event_rows["start_ns"][call]
    step = np.searchsorted(start_ns, called_ns, side="right") - 1
    inside = (step >= 0) & (called_ns < end_ns[np.maximum(step, 0)])
    done = np.full(len(start_ns), -1, np.int64)
    np.maximum.at(done, step[inside], work.end_ns[inside])
    return np.maximum.accumulate(done) if (done >= 0).all() else None
