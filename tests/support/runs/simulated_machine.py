"""A small machine, simulated: a host that calls, a GPU that works, a queue between them that fills up.

It is written from how CUDA behaves, not from how gpulab replays: a loop simulated with its kernels twice as fast is
what a replay of the slow one must predict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.graph.build import build_graph
from gpulab.tables import EventKind
from tests.support.runs.made_runs import NO_WORKERS, event, on_gpu


@dataclass(frozen=True)
class Call:
    """One thing a loop does in a step, in microseconds."""

    host_us: float = 20.0  # Python and dispatch before the call
    kernel_us: float = 30.0
    stream: int = 7
    waits: bool = False  # a synchronisation instead of a launch
    loads_us: float = 0.0  # DataLoader.__next__ instead of a launch


@dataclass(frozen=True)
class Setup:
    """The machine."""

    call_us: float = 4.0
    latency_us: float = 7.0
    turn_us: float = 1.0
    queue: int = 1024
    gpu: float = 1.0  # kernels take so many times as long
    host: float = 1.0
    blocking: bool = True  # False: synchronisations are left out


def simulate(calls, steps=6, setup=Setup()):
    """The events of a loop that makes these calls in each step, and how long each step is in the end, in ms."""
    events, ends, last = [], [], {}
    now, number = 0.0, 0
    marks = []
    for step in range(steps):
        begin = now
        for call in calls:
            now, number = _done(call, setup, now, number, events, ends, last)
        events.append(event(EventKind.STEP, f"ProfilerStep#{step}", begin / 1e3, (now - begin) / 1e3))
        marks.append((begin, now, max(ends, default=now)))
    return events, marks


def _done(call, setup, now, number, events, ends, last):
    if call.loads_us:
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        length = call.loads_us * setup.host
        events.append(event(EventKind.LOADER, name, now / 1e3, length / 1e3))
        return now + length, number
    begin = now + call.host_us * setup.host
    events.append(event(EventKind.OP, "aten::op", (now + 0.1) / 1e3, max(0.0, begin - now - 0.2) / 1e3))
    if call.waits:
        if not setup.blocking:
            return begin, number
        over = max(begin + setup.call_us, max(ends, default=0.0) + 3.0)
        events.append(event(EventKind.SYNC, "cudaStreamSynchronize", begin / 1e3, (over - begin) / 1e3))
        return over, number
    number += 1
    over = begin + setup.call_us * setup.host
    if len(ends) >= setup.queue:
        over = max(over, ends[-setup.queue] + 2.0)
    start = max(begin + setup.latency_us, last.get(call.stream, -1e9) + setup.turn_us)
    end = start + call.kernel_us * setup.gpu
    last[call.stream] = end
    ends.append(end)
    events.append(event(EventKind.LAUNCH, "cudaLaunchKernel", begin / 1e3, (over - begin) / 1e3, correlation=number))
    kernel = event(
        EventKind.KERNEL, "ampere_sgemm", start / 1e3, (end - start) / 1e3, correlation=number, stream=call.stream
    )
    events.append(kernel)
    return over, number


def run_like(calls, steps=6, **setup):
    """The run that a profiler would have recorded of it."""
    loaders = [NO_WORKERS] if any(call.loads_us for call in calls) else []
    return on_gpu(simulate(calls, steps, replace(Setup(), **setup))[0], loaders=loaders)


def step_ms(calls, steps=40, **setup):
    """How long a step is in the end: the pace of host or GPU, whichever is slower, once queues have filled."""
    marks = simulate(calls, steps, replace(Setup(), **setup))[1]
    half = steps // 2
    host = (marks[-1][1] - marks[half][1]) / (steps - 1 - half)
    device = (marks[-1][2] - marks[half][2]) / (steps - 1 - half)
    return max(host, device) / 1e3


def loops(streams=(7,)):
    """Any loop: launches on these streams, now and then a wait or a fetch, and at least one launch."""
    call = st.builds(
        Call,
        host_us=st.floats(1, 400),
        kernel_us=st.floats(1, 500),
        stream=st.sampled_from(streams),
        waits=st.sampled_from([False, False, False, False, True]),
        loads_us=st.sampled_from([0.0, 0.0, 0.0, 0.0, 700.0]),
    )
    some = st.lists(call, min_size=1, max_size=25)
    return some.filter(lambda calls: any(not each.waits and not each.loads_us for each in calls))


def graph(run):
    """A run as what can be timed again."""
    run_steps = find_steps(run)
    return build_graph(run, run_steps, build_ledger(run, run_steps))


__all__ = ["Call", "Setup", "graph", "loops", "run_like", "simulate", "step_ms"]
