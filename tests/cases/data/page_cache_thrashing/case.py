"""Epochs that read the dataset from storage again, because it does not fit into memory."""

from gpulab.run import Loader, Machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, host_sample, mark, run_of, stepped

GIB = 2**30
LOADER = Loader(workers=2, batch_size=32, pin_memory=False, batches=10, dataset="Photos", name="loader")
BATCHES = 10  # per epoch, one per 100 ms


def run(reads, waits, *, available=64 * GIB, limit=None):
    """Epochs of ten steps; each reads so many bytes and waits so many ms for each batch."""
    marks, samples, total = [], [], 0.0
    for epoch, (read, wait_ms) in enumerate(zip(reads, waits, strict=True)):
        for batch in range(BATCHES):
            at = 100.0 * (epoch * BATCHES + batch)
            marks.append(mark(at, wait_ms, epoch=epoch, process_ms=at))
            total += read / BATCHES
            samples.append(host_sample(at + 50, read_bytes=total, memory_available_bytes=float(available)))
        marks.append(mark(100.0 * (epoch + 1) * BATCHES - 2, 1, epoch=epoch, yielded=False, process_ms=at))
    count = BATCHES * len(reads)
    events = stepped(lambda at: [event(EventKind.KERNEL, "gemm", at + 60, 39)], count=count)
    machine = Machine(cores_allowed=8.0, memory_limit_bytes=limit)
    return run_of(events, marks=marks, samples=samples, loaders=[LOADER], machine=machine)


def provoked_by_data_larger_than_the_free_memory():
    return run([40 * GIB] * 3, [50] * 3, available=30 * GIB)


def provoked_by_a_container_with_a_memory_limit():
    return run([10 * GIB] * 2, [40] * 2, available=200 * GIB, limit=8 * GIB)


def spared_because_only_the_first_epoch_reads():
    return run([40 * GIB, 0, 0], [50, 2, 2], available=30 * GIB)


def spared_because_it_would_fit():
    return run([4 * GIB] * 3, [50] * 3, available=30 * GIB)


def spared_because_the_loop_does_not_wait():
    return run([40 * GIB] * 3, [2] * 3, available=30 * GIB)
