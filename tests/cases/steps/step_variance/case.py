"""Steps whose durations vary much, without a regular cause."""

import numpy as np

from gpulab.tables import EventKind, MarkKind
from tests.support.runs.made_runs import event, host_sample, mark, run_of

TRACED = 6


def run(durations_ms, frame=None):
    """Steps of these durations, of which the first six are traced."""
    ends = np.cumsum(durations_ms)
    starts = ends - durations_ms
    marks = [mark(float(end) - 1, 0.5, kind=MarkKind.OPTIMIZER) for end in ends]
    events = []
    for number in range(TRACED):
        start, length = float(starts[number]), float(durations_ms[number])
        events.append(event(EventKind.STEP, f"ProfilerStep#{number}", start, length))
        events.append(event(EventKind.OP, "aten::mm", start, 0.8 * length))
    samples = [host_sample(float(at), frame=frame(at, starts, durations_ms) if frame else None)
               for at in np.arange(0, ends[-1], 10)]  # fmt: skip
    return run_of(events, marks=marks, samples=samples, windows=[(0, float(ends[TRACED]))])


def drawn(share, length_ms, seed=0, count=400):
    generator = np.random.default_rng(seed)
    durations = 20 + generator.normal(0, 0.5, count)
    slow = generator.random(count) < share
    slow[:10] = False
    return np.where(slow, length_ms, durations)


def provoked_by_a_few_steps_that_take_five_times_as_long():
    return run(drawn(0.03, 100.0))


def provoked_by_steps_of_very_different_length():
    generator = np.random.default_rng(2)
    return run(np.concatenate((np.full(10, 20.0), 15 * generator.lognormal(0, 0.5, 300))))


def spared_because_all_steps_are_alike():
    return run(drawn(0.0, 100.0))


def spared_because_slow_steps_are_too_rare_to_matter():
    return run(drawn(0.004, 60.0))


def spared_because_there_are_few_steps():
    return run(drawn(0.05, 100.0, count=60))
