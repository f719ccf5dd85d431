"""Memory that is read back from swap while the loop runs."""

from gpulab.run import Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, host_sample, run_of, stepped

GIB = 2**30


def run(swapped_per_s, *, available=1 * GIB, memory=16 * GIB):
    events = stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 80)], count=30)
    samples = [
        host_sample(at, swapped_in_bytes=5e9 + swapped_per_s * at / 1e3, memory_available_bytes=float(available))
        for at in range(0, 3000, 100)
    ]
    return run_of(events, samples=samples, machine=Machine(cores_allowed=8.0, memory_bytes=memory))


def provoked_by_memory_that_is_full():
    return run(200e6)


def provoked_by_a_trickle_that_lasts():
    return run(20e6, available=GIB // 4)


def spared_because_nothing_is_read_back():
    return run(0.0)


def spared_because_a_few_pages_are():
    return run(3e5)


def spared_because_memory_is_free():
    return run(200e6, available=12 * GIB)
