"""Four epochs of twenty steps of 10 ms, with other code between them."""

from dataclasses import replace

from gpulab.run import Loader
from gpulab.tables import STALLS, MarkKind
from tests.support.runs.made_runs import host_sample, mark, rows, run_of, stall

TRAINED = Loader(name="train_loader", kind="DataLoader", workers=0, batch_size=32, pin_memory=False, batches=20)
SAMPLING = {"frame": "sample (train.py:60)", "called": "torch.nn.modules.module.Module.__call__"}


def epochs(gaps_ms, *, before_ms=0.0, texts=SAMPLING, loader=TRAINED, is_new=False, is_ahead=False):
    """Epochs with gaps of these lengths after them; samples every 50 ms.

    `is_new`: each epoch has a DataLoader of its own; `is_ahead`: a pass ends before the step of its last batch.
    """
    marks, samples, at = [], [], before_ms
    for epoch, gap_ms in enumerate(gaps_ms):
        for _ in range(20):
            marks.append(mark(at, 1.0, epoch=epoch, loader=epoch * is_new))
            marks.append(mark(at + 9.0, 0.0, kind=MarkKind.OPTIMIZER))
            at += 10.0
        end = mark(at - 5.0 if is_ahead else at, 0.1, epoch=epoch, loader=epoch * is_new, yielded=False)
        marks.insert(-1 if is_ahead else len(marks), end)
        at += 0.1
        samples += [host_sample(at + ms, **texts) for ms in range(0, round(gap_ms), 50)]
        at += gap_ms
    marks.append(mark(at, 0.0, kind=MarkKind.OPTIMIZER))  # the end of the run
    return run_of(marks=marks, samples=samples, loaders=[loader] * (len(gaps_ms) if is_new else 1), windows=[])


def provoked_by_samples_that_are_drawn_after_each_epoch():
    return epochs([200.0] * 4)


def provoked_by_garbage_collection_after_each_epoch():
    collections = [stall(201 + 400.1 * epoch, 190, "gc.collect() in train.py line 9") for epoch in range(4)]
    return replace(epochs([200.0] * 4), stall_rows=rows(STALLS, collections))


def provoked_by_code_that_no_sample_names():
    return epochs([200.0] * 4, texts={})


def provoked_by_a_loader_that_fetches_a_batch_ahead():
    return epochs([200.0] * 4, is_ahead=True)


def spared_as_the_gaps_are_short():
    return epochs([30.0] * 4)


def spared_as_there_is_one_gap():
    return epochs([300.0, 0.0, 0.0, 0.0])


def spared_as_it_comes_before_the_training():
    return epochs([1.0] * 4, before_ms=5000.0)


def spared_as_workers_start():
    starting = {"frame": "train (train.py:40)", "called": "torch.utils.data.dataloader.DataLoader.__iter__"}
    loader = Loader(**{**vars(TRAINED), "workers": 2, "persistent_workers": False})
    return epochs([200.0] * 4, texts=starting, loader=loader)


def spared_as_each_gap_makes_the_data_of_a_new_loader():
    return epochs([200.0] * 4, is_new=True)
