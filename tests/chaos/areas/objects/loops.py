"""Unusual training loops: where they stop, in which thread they run, and misuse of gpulab.step()."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

import gpulab
from tests.chaos.areas.objects.loop import loop, train, train_step
from tests.chaos.program import Log


@loop("abandoned epoch")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    for _epoch in range(3):
        for index, batch in enumerate(loader):
            train_step(batch, module, optimizer)
            if index == 3:
                break
    return train(log, *parts)


@loop("iterator abandoned")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    iterators = [iter(loader) for _ in range(3)]
    for iterator in iterators:
        train_step(next(iterator), module, optimizer)
    del iterators, iterator
    gc.collect()
    return train(log, *parts)


@loop("two iterators")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    return sum(train_step(first, module, optimizer) for first, _ in zip(loader, loader, strict=False))


@loop("nested loaders")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    for index, batch in enumerate(loader):
        train_step(batch, module, optimizer)
        if index % 3 == 0:
            log.note(str(sum(1 for _ in DataLoader(list(range(6)), batch_size=2))))
    return None


@loop("loader in a thread")
def _(log: Log, *parts: Any) -> Any:
    thread = threading.Thread(target=lambda: log.note(train(Log(), *parts)))
    thread.start()
    thread.join()
    return train(log, *parts)


@loop("iterator changes thread")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    iterator = iter(loader)
    train_step(next(iterator), module, optimizer)
    thread = threading.Thread(target=lambda: log.note(str(sum(1 for _ in iterator))))
    thread.start()
    thread.join()
    return next(iterator, "the end")


@loop("loop in a generator")
def _(log: Log, *parts: Any) -> Any:
    def losses() -> Iterator[float]:
        loader, module, optimizer = parts
        try:
            for batch in loader:
                yield train_step(batch, module, optimizer)
        finally:
            log.note("closed")

    generator = losses()
    first = [next(generator) for _ in range(3)]
    generator.close()
    return first, train(log, *parts)


@loop("async loop")
def _(log: Log, *parts: Any) -> Any:
    async def epoch() -> str:
        loader, module, optimizer = parts
        total = 0.0
        for batch in loader:
            total += train_step(batch, module, optimizer)
            await asyncio.sleep(0)
        return f"{total:.6f}"

    async def both() -> Any:
        return await asyncio.gather(epoch(), asyncio.wait_for(asyncio.sleep(0.01, "slept"), 5))

    new_loop = asyncio.new_event_loop()
    try:
        return new_loop.run_until_complete(both())
    finally:
        new_loop.close()


@loop("two programs in threads")
def _(log: Log, *parts: Any) -> Any:
    def count() -> None:
        log.call("other thread")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    result = train(log, *parts)
    for thread in threads:
        thread.join()
    return result


@loop("thread still runs at the end")
def _(log: Log, *parts: Any) -> Any:
    event = threading.Event()
    thread = threading.Thread(target=lambda: event.wait(0.2), daemon=True)
    thread.start()
    return train(log, *parts)


@loop("gpulab.step")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    for batch in loader:
        train_step(batch, module, optimizer)
        gpulab.step()
        gpulab.step()
    return None


@loop("gpulab.step alone")
def _(log: Log, *parts: Any) -> Any:
    for _ in range(30):
        gpulab.step()
    return train(log, *parts)


@loop("gpulab.step in a thread")
def _(log: Log, *parts: Any) -> Any:
    thread = threading.Thread(target=lambda: [gpulab.step() for _ in range(20)])
    thread.start()
    result = train(log, *parts)
    thread.join()
    return result


@loop("gpulab.step misused")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    with contextlib.suppress(TypeError):
        gpulab.step(3)  # type: ignore[call-arg]
    return result


@loop("gpulab.step in a handler")
def _(log: Log, *parts: Any) -> Any:
    before = signal.signal(signal.SIGUSR2, lambda *_: gpulab.step())
    try:
        loader, module, optimizer = parts
        for batch in loader:
            train_step(batch, module, optimizer)
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    return None
