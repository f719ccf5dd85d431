"""A first epoch that reads from storage, and later ones that find the data in the page cache."""

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


def provoked_by_a_first_epoch_that_reads_everything():
    return run([GIB, 0, 0], [70, 2, 2])


def provoked_by_two_epochs_of_which_the_second_reads_a_little():
    return run([GIB, 0.1 * GIB], [60, 5])


def spared_because_every_epoch_reads():
    return run([GIB, GIB, GIB], [60, 60, 60])


def spared_because_the_first_epoch_does_not_wait():
    return run([GIB, 0, 0], [3, 2, 2])


def spared_because_hardly_anything_is_read():
    return run([10**7, 0, 0], [70, 2, 2])


def spared_because_there_is_one_epoch():
    return run([GIB], [70])
