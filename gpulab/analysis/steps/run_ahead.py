"""Steps of a loop whose host runs ahead of its GPU: few launches, much work in each, and nobody waits.

CUDA takes some thousand launches before the host has to wait. A loop of a few large kernels is through with its Python
long before the GPU is, and its marks lie as close together as the calls do; what a step takes, the GPU alone knows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.host.launch_delays import calls_of
from gpulab.intervals import Ints
from gpulab.run import Run

LEAST_STEPS = 4  # of fewer, the work before them tells where the first began
AHEAD_OF_FEW = 1.5  # of fewer steps that were recorded, not computed: chance alone is a tenth
AHEAD = 1.1  # the GPU's pace over the host's; where one waits for the other they differ by less


class Paced(NamedTuple):
    """The recorded steps as the GPU worked through them: from the end of one step's work to the end of the next's.

    One fewer than the host's, as the first has no beginning; of so few that each counts, it begins where the work
    called for before it ended.
    """

    start_ns: Ints
    end_ns: Ints


def paced(finished_ns: Ints, start_ns: Ints, end_ns: Ints, *, computed: bool = False) -> Paced | None:
    """Where the GPU's steps are, for recorded steps that follow one another; None unless the host runs ahead of it.

    `finished_ns`: as `done_ns` tells it of these steps. `computed`: they are those of a virtual GPU.
    """
    began_ns, done = finished_ns[0], finished_ns[1:]
    if len(start_ns) < LEAST_STEPS and began_ns >= 0:
        done = np.append(began_ns, done)
    took = np.diff(done)
    margin = AHEAD if computed or len(start_ns) >= LEAST_STEPS else AHEAD_OF_FEW
    if not len(took) or np.median(took) <= margin * np.median(end_ns - start_ns):
        return None
    return Paced(done[:-1], done[1:])


def filling(done: Ints, start_ns: Ints, end_ns: Ints) -> int:
    """How many of these steps, from the first on, only filled the queue: the GPU fell behind by a share of each.

    Such a step is as long as its calls, whatever the GPU has to do for it; it is none of those of a long loop.
    """
    if done[0] < 0 and len(done) < 3:
        return 0
    behind = np.diff(done) > AHEAD * (end_ns - start_ns)
    behind[0] = behind[0] if done[0] >= 0 else behind[1]  # as the next one, where nothing tells when its turn came
    return len(behind) if behind.all() else int(behind.argmin())


def done_ns(run: Run, start_ns: Ints, end_ns: Ints) -> Ints | None:
    """When the work called for before these steps was done, -1 if none was; and then that which each step called for.

    None where a step called for none, as then nothing is told.
    """
    if not len(start_ns) or not len(run.event_rows):
        return None
    work = device_work(run)
    call = calls_of(work)
    work, call = work.where(call >= 0), call[call >= 0]
    called_ns = run.event_rows["start_ns"][call]
    step = np.searchsorted(start_ns, called_ns, side="right") - 1
    inside = (step < 0) | (called_ns < end_ns[np.maximum(step, 0)])
    done = np.full(len(start_ns) + 1, -1, np.int64)
    np.maximum.at(done, step[inside] + 1, work.end_ns[inside])
    return np.maximum.accumulate(done) if (done[1:] >= 0).all() else None
