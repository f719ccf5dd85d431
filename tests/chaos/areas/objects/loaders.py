"""Odd loaders: batch samplers without a working length, odd settings, subclasses, wrappers, workers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, default_collate
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from tests.chaos.areas.objects.loop import BATCH, SAMPLES, Interruption, Oddity, fresh
from tests.chaos.program import Log

Make = Callable[[Log, Any], Any]


class _Batches:
    """A batch sampler without a length."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def __iter__(self) -> Iterator[list[int]]:
        for start in range(0, SAMPLES, BATCH):
            yield list(range(start, start + BATCH))


def _raise(error: BaseException) -> Any:
    raise fresh(error)


def _sampler(**methods: Any) -> Make:
    """A loader whose batch sampler has these methods; the calls of `__len__` are counted."""

    def make(log: Log, dataset: Any) -> Any:
        def bound(name: str, method: Any) -> Any:
            def call(*arguments: Any) -> Any:
                log.call(f"batch_sampler.{name}")
                return method(*arguments)

            return property(call) if name == "batch_size" else call

        functions = {name: bound(name, method) if callable(method) else method for name, method in methods.items()}
        return DataLoader(dataset, batch_sampler=type("Batches", (_Batches,), functions)(log))

    return make


def _len(value: Any) -> Make:
    return _sampler(__len__=(lambda _: _raise(value)) if isinstance(value, BaseException) else (lambda _: value))


def _batch_size(value: Any) -> Make:
    return _sampler(batch_size=(lambda _: _raise(value)) if isinstance(value, BaseException) else (lambda _: value))


def _slow_length(_: Any) -> int:
    time.sleep(0.005)
    return SAMPLES // BATCH


def _loader(**settings: Any) -> Make:
    return lambda _, dataset: DataLoader(dataset, **{"batch_size": BATCH, **settings})


def _subclass(**methods: Any) -> Make:
    return lambda _, dataset: type("OddLoader", (DataLoader,), methods)(dataset, batch_size=BATCH)


class _OddIterator(_SingleProcessDataLoaderIter):
    def __next__(self) -> Any:
        return super().__next__()


class _IteratorWithOddFields(_SingleProcessDataLoaderIter):
    @property
    def _num_workers(self) -> Any:
        return self.__dict__.get("workers_of_probe", 0)

    @_num_workers.setter
    def _num_workers(self, value: int) -> None:
        self.__dict__["workers_of_probe"] = value


class _Wrapper:
    """Wraps a loader, as progress bars and device prefetchers do."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)


def _collate_raises(error: BaseException, at: int = 5) -> Make:
    def make(_: Log, dataset: Any) -> Any:
        calls = itertools.count()

        def collate(items: list[Any]) -> Any:
            if next(calls) == at:
                raise fresh(error)
            return default_collate(items)

        return DataLoader(dataset, batch_size=BATCH, collate_fn=collate)

    return make


class _OddSampler(SequentialSampler):
    def __eq__(self, other: object) -> bool:
        raise Oddity("eq of the sampler")

    def __hash__(self) -> int:
        raise Oddity("hash of the sampler")


def _worker_init(number: int) -> None:
    if number == 1:
        raise Oddity("worker")


LOADERS: dict[str, Make] = {
    "ordinary": _loader(),
    "shuffled": _loader(shuffle=True),
    "drop last": _loader(batch_size=7, drop_last=True),
    "batches of one": _loader(batch_size=1),
    "no batches": _loader(batch_size=None),
    "no length": lambda log, dataset: DataLoader(dataset, batch_sampler=_Batches(log)),
    "length not implemented": _len(NotImplementedError()),
    "length raises": _len(RuntimeError("length")),
    "length raises attribute": _len(AttributeError("length")),
    "length raises type": _len(TypeError("length")),
    "length raises oddity": _len(Oddity("length")),
    "length interrupts": _len(Interruption("length")),
    "length raises keyboard": _len(KeyboardInterrupt()),
    "length exits": _len(SystemExit(3)),
    "length stops": _len(StopIteration("length")),
    "length negative": _len(-1),
    "length huge": _len(2**70),
    "length big": _len(2**62),
    "length zero": _len(0),
    "length float": _len(2.5),
    "length text": _len("10"),
    "length none": _len(None),
    "length array": _len(numpy.int64(10)),
    "length true": _len(True),
    "length slow": _sampler(__len__=_slow_length),
    "length counts": _sampler(__len__=lambda _: SAMPLES // BATCH),
    "length recurses": _sampler(__len__=lambda sampler: len(sampler)),
    "batch size list": _sampler(batch_size=[4, 4]),
    "batch size text": _sampler(batch_size="four"),
    "batch size numpy": _sampler(batch_size=numpy.int64(4)),
    "batch size array": _sampler(batch_size=numpy.array([4, 4])),
    "batch size tensor": _sampler(batch_size=torch.tensor([4, 4])),
    "batch size float": _sampler(batch_size=float("nan")),
    "batch size huge": _sampler(batch_size=2**70),
    "batch size none": _sampler(batch_size=None),
    "batch size raises": _batch_size(Oddity("batch size")),
    "batch size raises attribute": _batch_size(AttributeError("batch size")),
    "batch size interrupts": _batch_size(Interruption("batch size")),
    "batch size raises keyboard": _batch_size(KeyboardInterrupt()),
    "sampler getattr raises": _sampler(__getattr__=lambda _, name: _raise(Oddity(name))),
    "sampler getattr interrupts": _sampler(__getattr__=lambda _, name: _raise(Interruption(name))),
    "odd sampler": lambda _, dataset: DataLoader(dataset, batch_size=BATCH, sampler=_OddSampler(dataset)),
    "odd batch sampler": lambda _, dataset: DataLoader(
        dataset, batch_sampler=BatchSampler(RandomSampler(dataset), BATCH, False)
    ),
    "list of batches": lambda _, dataset: DataLoader(dataset, batch_sampler=[[0, 1], [2, 3]] * 5),
    "subclass": _subclass(),
    "subclass iterates": _subclass(__iter__=lambda loader: iter(list(DataLoader.__iter__(loader)))),
    "subclass length raises": _subclass(__len__=lambda _: _raise(Oddity("length of the loader"))),
    "subclass hash raises": _subclass(__hash__=lambda _: _raise(Oddity("hash of the loader"))),
    "subclass bool raises": _subclass(__bool__=lambda _: _raise(Oddity("bool of the loader"))),
    "subclass dict raises": _subclass(__class__=property(lambda _: _raise(Oddity("class of the loader")))),
    "odd iterator": _subclass(_get_iterator=lambda loader: _OddIterator(loader)),
    "iterator with odd fields": _subclass(_get_iterator=lambda loader: _IteratorWithOddFields(loader)),
    "wrapper": lambda _, dataset: _Wrapper(DataLoader(dataset, batch_size=BATCH)),
    "zip": lambda _, dataset: [
        first
        for first, _ in zip(DataLoader(dataset, batch_size=BATCH), DataLoader(dataset, batch_size=2), strict=False)
    ],
    "chain": lambda _, dataset: itertools.chain(DataLoader(dataset, batch_size=BATCH), DataLoader(dataset)),
    "generator": lambda _, dataset: (batch for batch in DataLoader(dataset, batch_size=BATCH)),
    "collate raises": _collate_raises(Oddity("collate")),
    "collate stops": _collate_raises(StopIteration("collate")),
    "collate interrupts": _collate_raises(Interruption("collate")),
    "collate raises keyboard": _collate_raises(KeyboardInterrupt("collate")),
    "collate exits": _collate_raises(SystemExit(2)),
    "first collate raises": _collate_raises(Oddity("collate"), at=0),
    "collate odd": _loader(collate_fn=lambda items: {"items": items, "x": torch.stack(list(items))}),
    "one worker": _loader(num_workers=1),
    "two workers": _loader(num_workers=2, persistent_workers=True),
    "worker init raises": _loader(num_workers=2, worker_init_fn=_worker_init),
}
WORKER_LOADERS = frozenset(["one worker", "two workers", "worker init raises"])
