"""Odd datasets: their attributes, comparison, hashes and items raise, or return something unusual."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from tests.chaos.areas.objects.loop import SAMPLES, Interruption, Oddity, fresh, samples
from tests.chaos.program import Log

Make = Callable[[Log], Any]


class _Items(Dataset):
    def __init__(self) -> None:
        self.items = samples()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def _with(**methods: Any) -> Make:
    """A dataset class with these methods, which get the log first."""

    def make(log: Log) -> Any:
        def bound(name: str, method: Any) -> Any:
            if not callable(method):
                return method

            def call(*arguments: Any) -> Any:
                log.call(name)
                return method(*arguments)

            return call

        return type("Odd", (_Items,), {name: bound(name, method) for name, method in methods.items()})()

    return make


def _raises(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    def method(*_: Any) -> Any:
        raise fresh(error)

    return method


def _property_raises(name: str, error: type[BaseException] = Oddity) -> Make:
    return lambda _: type("OddProperty", (_Items,), {name: property(_raises(error))})()


def _item_raises(error: type[BaseException], at: int = SAMPLES // 2) -> Make:
    def getitem(dataset: Any, index: int) -> Any:
        if index == at:
            raise error("item")
        return dataset.items[index]

    return _with(__getitem__=getitem)


class _Stream(IterableDataset):
    def __init__(self, error: type[BaseException] | None = None, at: int = SAMPLES) -> None:
        self._error, self._at = error, at

    def __iter__(self) -> Iterator[Any]:
        for index, item in enumerate(samples()):
            if index == self._at and self._error is not None:
                raise self._error("stream")
            yield item


class _Endless(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from samples()
            return


class _Sized(_Stream):
    def __len__(self) -> int:
        return 3  # a lie: PyTorch warns


class _Proxy:
    """Passes everything on, its class too."""

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "_inner", inner)

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_inner"), name)

    def __len__(self) -> int:
        return len(object.__getattribute__(self, "_inner"))

    def __getitem__(self, index: int) -> Any:
        return object.__getattribute__(self, "_inner")[index]


class _Slots:
    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = samples()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


class _OddMeta(type(Dataset)):  # type: ignore[misc]
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise Oddity("name")

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise Oddity("module")

    def __eq__(cls, other: object) -> bool:
        raise Oddity("eq of the class")

    __hash__ = type.__hash__


class _HashlessMeta(type(Dataset)):  # type: ignore[misc]
    def __hash__(cls) -> int:
        raise Oddity("hash of the class")


def _meta(meta: type) -> Make:
    return lambda _: meta("OddClass", (_Items,), {})()


def _root_raises(error: BaseException) -> Make:
    names = ("root", "path", "paths", "samples", "data_dir", "files")
    return lambda _: type("Rooted", (_Items,), dict.fromkeys(names, property(_raises(error))))()


def _anything(dataset: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return dataset


def _long_name(_: Log) -> Any:
    return type("A" * 100_000 + "\x1b[31m\n", (_Items,), {})()


DATASETS: dict[str, Make] = {
    "ordinary": lambda _: _Items(),
    "list": lambda _: samples(),
    "tensors": lambda _: TensorDataset(*[item.repeat(2, 1) for item in samples()[:2]]),
    "array": lambda _: numpy.ones((SAMPLES, 4), dtype="float32"),
    "subset": lambda _: Subset(_Items(), range(0, SAMPLES, 2)),
    "concatenation": lambda _: ConcatDataset([_Items(), _Items()]),
    "dict items": _with(__getitem__=lambda dataset, index: {"x": dataset.items[index], "name": "s"}),
    "text items": _with(__getitem__=lambda dataset, index: "text"),
    "hash raises": _with(__hash__=_raises(Oddity("hash"))),
    "hash none": _with(__hash__=None),
    "hash is text": _with(__hash__=lambda _: "text"),
    "eq raises": _with(__eq__=_raises(Oddity("eq")), __hash__=lambda dataset: id(dataset)),
    "eq is array": _with(__eq__=lambda *_: numpy.ones(3), __hash__=lambda _: 1),
    "bool raises": _with(__bool__=_raises(Oddity("bool"))),
    "repr raises": _with(__repr__=_raises(Oddity("repr")), __str__=_raises(Oddity("str"))),
    "format raises": _with(__format__=_raises(Oddity("format"))),
    "len raises": _with(__len__=_raises(Oddity("len"))),
    "len not implemented": _with(__len__=_raises(NotImplementedError)),
    "len negative": _with(__len__=lambda _: -1),
    "len huge": _with(__len__=lambda _: 2**70),
    "len zero": _with(__len__=lambda _: 0),
    "dict raises": _property_raises("__dict__"),
    "class raises": _property_raises("__class__"),
    "class raises interruption": _property_raises("__class__", Interruption),
    "class lies": lambda _: type("Liar", (_Items,), {"__class__": property(lambda _: int)})(),
    "root raises": _root_raises(Oddity("root")),
    "root interrupts": _root_raises(Interruption("root")),
    "root odd": lambda _: type("Rooted", (_Items,), {"root": "\0" * 5000, "path": b"\xff", "files": [object()]})(),
    "path raises": _with(__fspath__=_raises(Oddity("fspath"))),
    "getattr raises": _with(__getattr__=_raises(Oddity("getattr"))),
    "getattr interrupts": _with(__getattr__=_raises(Interruption("getattr"))),
    "getattr endless": _with(__getattr__=lambda dataset, name: getattr(dataset, name + "x")),
    "getattr anything": _with(__getattr__=_anything),
    "proxy": lambda _: _Proxy(_Items()),
    "slots": lambda _: _Slots(),
    "odd metaclass": _meta(_OddMeta),
    "hashless metaclass": _meta(_HashlessMeta),
    "long name": _long_name,
    "item raises": _item_raises(Oddity),
    "item raises stop": _item_raises(StopIteration),
    "item raises index": _item_raises(IndexError),
    "item raises exit": _item_raises(SystemExit),
    "item raises keyboard": _item_raises(KeyboardInterrupt),
    "item raises generator exit": _item_raises(GeneratorExit),
    "item raises interruption": _item_raises(Interruption),
    "first item raises": _item_raises(Oddity, at=0),
    "item recurses": _with(__getitem__=lambda dataset, index: dataset[index]),
    "stream": lambda _: _Stream(),
    "endless": lambda _: _Endless(),
    "stream with length": lambda _: _Sized(),
    "stream raises": lambda _: _Stream(Oddity, 10),
    "stream raises stop": lambda _: _Stream(StopIteration, 10),
    "stream interrupts": lambda _: _Stream(Interruption, 10),
    "deletes itself": _with(__del__=lambda _: None),
    "random items": _with(__getitem__=lambda dataset, index: dataset.items[index] * random.random()),
}
