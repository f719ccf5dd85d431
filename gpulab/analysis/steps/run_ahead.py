"""Run-ahead: find the GPU's steps when the host runs ahead of it.

CUDA queues about a thousand launches before the host has to wait. The Python code of a loop with a few large kernels
finishes long before the GPU does. Its step marks are then as close together as its calls, and only the GPU's work shows
the step time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.host.launch_delays import launch_calls
from gpulab.intervals import Ints
from gpulab.run import Run

MIN_RECORDED_STEPS = 4  # with fewer steps, earlier work defines the start of the first one
MIN_RUN_AHEAD_FEW_STEPS = 1.5  # the same for fewer steps that were recorded, not computed: noise alone is 10 %
MIN_RUN_AHEAD = 1.1  # ratio of GPU step time to host step time; if one waits for the other, the ratio is smaller
MIN_RUN_AHEAD_COMPUTED = 1.02  # the same on a virtual GPU that is far behind: its kernels always take the same time
MIN_LAG = 1.5  # steps of the GPU, by which the work of a step ends after the host's step; below one if the GPU waits
FAR_BEHIND = 0.5  # of a step of the GPU, by which the GPU is behind the host when the last step ends


class GpuSteps(NamedTuple):
    """The recorded steps as executed by the GPU: from the end of one step's work to the end of the next step's work.

    There is one step fewer than on the host, because the start of the first is unknown. With fewer than LEAST_STEPS
    steps, the first one starts when the work launched before it ended.
    """

    start_ns: Ints
    end_ns: Ints


def find_gpu_steps(finished_ns: Ints, start_ns: Ints, end_ns: Ints, *, computed: bool = False) -> GpuSteps | None:
    """Return the GPU's steps for adjacent recorded steps; None unless the host runs ahead of the GPU.

    `finished_ns`: from `done_ns` for these steps. `computed`: the run comes from a virtual GPU.
    """
    earlier_ns, done = finished_ns[0], finished_ns[1:]
    if len(start_ns) < MIN_RECORDED_STEPS and earlier_ns >= 0:
        done = np.append(earlier_ns, done)
    gpu_step_ns = np.diff(done)
    if not len(gpu_step_ns):
        return None
    if computed:
        margin = _computed_margin(done, end_ns)
    else:
        margin = MIN_RUN_AHEAD if len(start_ns) >= MIN_RECORDED_STEPS else MIN_RUN_AHEAD_FEW_STEPS
    # Once the queue of launches is full, the host's steps take as long as the GPU's, which are several steps behind.
    # On a virtual GPU, where this is exact, the host's steps serve as well, and there is one more of them.
    is_behind = (
        not computed
        and len(start_ns) >= MIN_RECORDED_STEPS
        and bool(np.median(finished_ns[1:] - end_ns) > MIN_LAG * np.median(gpu_step_ns))
    )
    if not is_behind and np.median(gpu_step_ns) <= margin * np.median(end_ns - start_ns):
        return None
    return GpuSteps(done[:-1], done[1:])


def count_queue_filling_steps(done: Ints, start_ns: Ints, end_ns: Ints, *, computed: bool = False) -> int:
    """Return how many steps at the start only filled the launch queue: in each of them the GPU fell further behind.

    Such a step lasts as long as its calls, however much work it launches. It is not typical of a long loop.
    `computed`: the run comes from a virtual GPU.
    """
    if done[0] < 0 and len(done) < 3:
        return 0
    margin = _computed_margin(done[1:], end_ns) if computed else MIN_RUN_AHEAD
    behind = np.diff(done) > margin * (end_ns - start_ns)
    behind[0] = behind[0] if done[0] >= 0 else behind[1]  # unknown start: assume the same as for the next step
    return len(behind) if behind.all() else int(behind.argmin())


def _computed_margin(done: Ints, end_ns: Ints) -> float:
    """Return the least ratio of GPU to host step time on a virtual GPU; Python times of its host are measured."""
    is_far_behind = len(done) > 1 and done[-1] - end_ns[-1] > FAR_BEHIND * np.median(np.diff(done))
    return MIN_RUN_AHEAD_COMPUTED if is_far_behind else MIN_RUN_AHEAD


def work_end_ns(run: Run, start_ns: Ints, end_ns: Ints, since_ns: int = 0) -> Ints | None:
    """Return when the work launched before these steps ended (-1 if none), then the same for the work of each step.

    Work launched before `since_ns` does not count. None if a step launched no work.
    """
    if not len(start_ns) or not len(run.event_rows):
        return None
    work = device_work(run)
    call = launch_calls(work)
    work, call = work.select(call >= 0), call[call >= 0]
    launch_ns = run.event_rows["start_ns"][call]
    step = np.searchsorted(start_ns, launch_ns, side="right") - 1
    inside = ((step < 0) & (launch_ns >= since_ns)) | ((step >= 0) & (launch_ns < end_ns[np.maximum(step, 0)]))
    done = np.full(len(start_ns) + 1, -1, np.int64)
    np.maximum.at(done, step[inside] + 1, work.end_ns[inside])
    return np.maximum.accumulate(done) if (done[1:] >= 0).all() else None
