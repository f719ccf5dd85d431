"""Loops that run profilers of their own, or patch PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tests.chaos.areas.objects.loop import loop, train, train_step
from tests.chaos.program import Log


@loop("user's profiler around the loop")
def _(log: Log, *parts: Any) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        result = train(log, *parts)
    return result, len(profiler.key_averages()) > 3


@loop("user's profiler in the loop")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    names = []
    for index, batch in enumerate(loader):
        if index in (1, 7):
            with torch.autograd.profiler.profile() as profiler:
                train_step(batch, module, optimizer)
            names.append(any("mul" in event.key for event in profiler.key_averages()))
        else:
            train_step(batch, module, optimizer)
    return names, train(log, *parts)


@loop("user's profiler with a schedule")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    traces: list[int] = []
    plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with torch.profiler.profile(schedule=plan, on_trace_ready=lambda _: traces.append(1)) as profiler:
        for batch in loader:
            train_step(batch, module, optimizer)
            profiler.step()
    return len(traces)


@loop("user's profiler left open")
def _(log: Log, *parts: Any) -> Any:
    profiler = torch.profiler.profile()
    profiler.start()
    try:
        return train(log, *parts)
    finally:
        profiler.stop()


@loop("next patched and left")
def _(log: Log, *parts: Any) -> Any:
    original = _BaseDataLoaderIter.__next__
    _BaseDataLoaderIter.__next__ = _patched_next  # type: ignore[method-assign]
    _patched_next.original = original  # type: ignore[attr-defined]
    try:
        result = train(log, *parts)
    finally:
        log.note(f"still patched: {_BaseDataLoaderIter.__next__ is _patched_next}")
    return result


def _patched_next(iterator: Any) -> Any:
    return _patched_next.original(iterator)  # type: ignore[attr-defined]


@loop("next patched and restored")
def _(log: Log, *parts: Any) -> Any:
    original = _BaseDataLoaderIter.__next__

    def patched(iterator: Any) -> Any:
        log.call("patched next")
        return original(iterator)

    _BaseDataLoaderIter.__next__ = patched  # type: ignore[method-assign]
    try:
        return train(log, *parts)
    finally:
        _BaseDataLoaderIter.__next__ = original  # type: ignore[method-assign]


@loop("prepare of profilers patched")
def _(log: Log, *parts: Any) -> Any:
    original = torch.autograd.profiler._prepare_profiler

    def patched(*arguments: Any) -> Any:
        return original(*arguments)

    torch.autograd.profiler._prepare_profiler = patched
    log.note("patched")
    return train(log, *parts)


@loop("global optimizer hook left")
def _(log: Log, *parts: Any) -> Any:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_global_hook)
    return train(log, *parts)


def _global_hook(*_: Any) -> None:
    """A hook of the user's that stays."""


@loop("global optimizer hooks cleared")
def _(log: Log, *parts: Any) -> Any:
    from torch.optim import optimizer

    hooks = dict(optimizer._global_optimizer_post_hooks)
    optimizer._global_optimizer_post_hooks.clear()
    try:
        return train(log, *parts)
    finally:
        optimizer._global_optimizer_post_hooks.update(hooks)


@loop("step of optimizers patched")
def _(log: Log, *parts: Any) -> Any:
    original = torch.optim.SGD.step

    def patched(*arguments: Any, **options: Any) -> Any:
        log.call("patched step")
        return original(*arguments, **options)

    torch.optim.SGD.step = patched  # type: ignore[method-assign]
    try:
        return train(log, *parts)
    finally:
        torch.optim.SGD.step = original  # type: ignore[method-assign]
