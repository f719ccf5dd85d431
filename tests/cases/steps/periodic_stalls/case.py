"""Periodic stalls, and steps that are longer for other reasons."""

import numpy as np

from gpulab.run import Loader
from gpulab.tables import STALLS, MarkKind, StallKind
from tests.support.runs.made_runs import MS, host_sample, mark, rows, run_of, stall

SAVE = {"frame": "train (cell line 30)", "called": "torch.serialization.save"}


def marked(step_ms, *, fetch_ms=2.0, others=(), samples=(), **more):
    """A run with step marks and no events."""
    starts = np.concatenate([[0.0], np.cumsum(step_ms)])
    marks = [mark(start, fetch_ms) for start in starts]
    more = {"loaders": [Loader(workers=0, batch_size=32), Loader(workers=0)], **more}
    return run_of(marks=sorted([*marks, *others], key=lambda row: row["start_ns"]), samples=samples, windows=[], **more)


def every(steps=60, each=10, pause_ms=100.0, step_ms=20.0):
    return [step_ms + (pause_ms if number % each == each - 1 else 0.0) for number in range(steps)]


def samples_in_long_steps(step_ms, sample, longer_than_ms=50):
    """Samples in the middle of the long steps."""
    starts = np.cumsum(step_ms) - step_ms
    return [host_sample(at + 25, **sample) for at, dur in zip(starts, step_ms, strict=True) if dur > longer_than_ms]


def provoked_by_a_checkpoint_every_ten_steps():
    return marked(every(), samples=samples_in_long_steps(every(), SAVE))


def provoked_by_a_checkpoint_now_and_then():
    steps = [20.0] * 60
    for number in (13, 22, 41):
        steps[number] = 150.0
    return marked(steps, samples=samples_in_long_steps(steps, SAVE))


def provoked_by_something_regular_that_is_not_known():
    return marked(every(), samples=samples_in_long_steps(every(), {"frame": "train (cell line 31)", "called": None}))


def provoked_by_a_log_entry():
    sample = {"frame": "train (cell line 12)", "called": "torch.utils.tensorboard.writer.SummaryWriter.add_histogram"}
    return marked(every(), samples=samples_in_long_steps(every(), sample))


def slow_first_steps(slow=0, **workers):
    """Passes of six batches, whose first step, or another one, takes 100 ms longer."""
    marks, at = [], 0.0
    for epoch in range(8):
        for number in range(6):
            marks.append(mark(at, 2.0, epoch=epoch))
            at += 120.0 if number == slow else 20.0
        marks.append(mark(at, 1.0, epoch=epoch, yielded=False))
        at += 1.0
    loader = Loader(batch_size=32, persistent_workers=False, **workers)
    return run_of(marks=marks, loaders=[loader], windows=[])


def provoked_by_slow_first_steps_of_passes_without_workers():
    return slow_first_steps(workers=0)


def spared_where_workers_that_start_again_slow_down_the_first_step():
    return slow_first_steps(workers=2, worker_starts=8)


def spared_while_workers_that_start_again_load_their_first_batches():
    return slow_first_steps(slow=1, workers=2, worker_starts=8, worker_batch_ns=30 * MS)


def provoked_by_slow_second_steps_long_after_the_first_batches_are_loaded():
    return slow_first_steps(slow=1, workers=2, worker_starts=8, worker_batch_ns=1 * MS)


def provoked_by_workers_that_start_with_every_pass():
    """Five batches a pass; each pass begins with 300 ms in which its workers start."""
    marks, at = [], 0.0
    for epoch in range(6):
        for number in range(5):
            marks.append(mark(at, 300.0 if number == 0 else 2.0, epoch=epoch))
            at += 320.0 if number == 0 else 20.0
        marks.append(mark(at, 1.0, epoch=epoch, yielded=False))
        at += 1.0
    loader = Loader(workers=4, batch_size=32, persistent_workers=False)
    return run_of(marks=marks, loaders=[loader], windows=[])


def spared_by_an_evaluation():
    """Every ten steps, batches of another loader."""
    steps = every()
    starts = np.cumsum(steps) - steps
    long = [at for at, dur in zip(starts, steps, strict=True) if dur > 50]
    return marked(steps, others=[mark(at + 20 + 10 * n, 1, loader=1) for at in long for n in range(5)])


def spared_by_workers_that_stay():
    run = provoked_by_workers_that_start_with_every_pass()
    loader = Loader(workers=4, batch_size=32, persistent_workers=True)
    return type(run)(**{**vars(run), "loaders": (loader,)})


def spared_by_batches_that_come_late():
    """Four workers that finish together: every fourth fetch is long."""
    marks, at = [], 0.0
    for number in range(61):
        fetch = 100.0 if number % 4 == 0 else 1.0
        marks.append(mark(at, fetch))
        at += fetch + 19.0
    return run_of(marks=marks, loaders=[Loader(workers=4, persistent_workers=True)], windows=[])


def spared_by_garbage_collections():
    steps = every()
    starts = np.cumsum(steps) - steps
    long = [at for at, dur in zip(starts, steps, strict=True) if dur > 50]
    return marked(steps, stall_rows=rows(STALLS, [stall(at + 5, 100) for at in long]))


def spared_by_compilations():
    steps = every()
    starts = np.cumsum(steps) - steps
    long = [at for at, dur in zip(starts, steps, strict=True) if dur > 50]
    return marked(steps, stall_rows=rows(STALLS, [stall(at + 5, 100, "f", StallKind.COMPILE) for at in long]))


def spared_by_first_steps_that_are_long():
    return marked([400.0, 300.0, *[20.0] * 60])


def spared_by_noise():
    chance = np.random.default_rng(0)
    noisy = [
        20 + (float(chance.uniform(10, 60)) if chance.random() < 0.15 else float(chance.normal(0, 1)))
        for _ in range(300)
    ]
    return marked(
        noisy,
        samples=samples_in_long_steps(
            noisy, {"frame": "train (cell line 3)", "called": "torch._tensor.Tensor.backward"}
        ),
    )


def spared_without_a_loader_by_steady_steps():
    marks = [mark(20.0 * number, 0, kind=MarkKind.OPTIMIZER) for number in range(60)]
    return run_of(marks=marks, windows=[])
