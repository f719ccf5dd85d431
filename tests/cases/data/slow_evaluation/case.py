"""Evaluations after every epoch: their batches are waited for, or not."""

from gpulab.run import Loader
from gpulab.tables import MarkKind
from tests.support.runs.made_runs import mark, run_of

TRAINED = Loader(name="train_loader", kind="DataLoader", workers=2, batch_size=32, pin_memory=False, batches=20)
EVALUATED = Loader(name="val_loader", kind="DataLoader", workers=0, batch_size=32, pin_memory=False, batches=10)


def evaluated(*, fetch_ms=20.0, first_ms=None, compute_ms=5.0, cpu_frac=0.1, loader=EVALUATED, updates=True):
    """Five epochs of twenty steps of 10 ms; after each, ten batches of another loader."""
    marks, at = [], 0.0
    for epoch in range(5):
        for _ in range(20):
            marks.append(mark(at, 1.0, epoch=epoch))
            marks.append(mark(at + 9.0, 0.0, kind=MarkKind.OPTIMIZER))
            at += 10.0
        marks.append(mark(at, 0.1, epoch=epoch, yielded=False))
        at += 1.0
        for number in range(10):
            took_ms = first_ms if first_ms is not None and number == 0 else fetch_ms
            marks.append(mark(at, took_ms, loader=1, epoch=epoch, cpu_ms=cpu_frac * took_ms))
            if not updates:
                marks.append(mark(at + took_ms + 1, 0.0, kind=MarkKind.OPTIMIZER))
            at += took_ms + compute_ms
        marks.append(mark(at, 0.1, loader=1, epoch=epoch, yielded=False))
        at += 1.0
    return run_of(marks=marks, loaders=[TRAINED, loader], windows=[])


def provoked_by_an_evaluation_without_workers():
    return evaluated()


def provoked_by_items_that_compute():
    return evaluated(cpu_frac=0.95)


def provoked_by_workers_that_start_for_every_evaluation():
    loader = Loader(**{**vars(EVALUATED), "workers": 2, "persistent_workers": False})
    return evaluated(fetch_ms=0.5, first_ms=120.0, loader=loader)


def spared_as_the_model_takes_the_time():
    return evaluated(fetch_ms=1.0, compute_ms=20.0)


def spared_as_the_workers_stay():
    return evaluated(loader=Loader(**{**vars(EVALUATED), "workers": 2, "persistent_workers": True}))


def spared_as_both_loaders_are_trained_on():
    return evaluated(updates=False)
