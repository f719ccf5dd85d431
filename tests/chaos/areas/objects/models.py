"""Odd modules and optimizers: parameters, hashes, comparison, hooks and closures that raise or lie."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import nn

from tests.chaos.areas.objects.loop import FEATURES, Interruption, Oddity, fresh
from tests.chaos.program import Log

MakeModule = Callable[[Log], Any]
MakeOptimizer = Callable[[Log, Any], Any]


def _raises(error: BaseException) -> Callable[..., Any]:
    def method(*_: Any, **__: Any) -> Any:
        raise fresh(error)

    return method


def _module(**methods: Any) -> MakeModule:
    return lambda _: type("OddModule", (nn.Linear,), methods)(FEATURES, 2)


class _Outer(nn.Module):
    """Holds a module, as wrappers of frameworks do."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, batch: Any) -> Any:
        return self.inner(batch)


class _Parameter(nn.Parameter):
    """A parameter whose facts raise when another than its own step asks."""

    def numel(self) -> int:
        raise Oddity("numel")

    def element_size(self) -> int:
        raise Oddity("element size")


def _odd_parameter(_: Log) -> Any:
    module = nn.Linear(FEATURES, 2)
    module.weight = _Parameter(module.weight.detach().clone())
    return module


def _original_module(_: Log) -> Any:
    module = nn.Linear(FEATURES, 2)
    module._orig_mod = 7  # as torch.compile names the module it wraps
    return module


MODULES: dict[str, MakeModule] = {
    "ordinary": lambda _: nn.Linear(FEATURES, 2),
    "sequence": lambda _: nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU(), nn.Linear(8, 2)),
    "outer": lambda _: _Outer(nn.Linear(FEATURES, 2)),
    "lazy": lambda _: nn.LazyLinear(2),
    "scripted": lambda _: torch.jit.trace(nn.Linear(FEATURES, 2), torch.ones(1, FEATURES)),
    "parameter raises": _odd_parameter,
    "original module": _original_module,
    "original raises": _module(_orig_mod=property(_raises(Oddity("orig")))),
    "compiled raises": _module(_compiled_call_impl=property(_raises(Oddity("compiled")))),
    "hash raises": _module(__hash__=_raises(Oddity("hash of the module"))),
    "eq raises": _module(__eq__=_raises(Oddity("eq of the module")), __hash__=lambda module: id(module)),
    "eq is array": _module(__eq__=lambda *_: torch.ones(3), __hash__=lambda module: id(module)),
    "bool raises": _module(__bool__=_raises(Oddity("bool of the module"))),
    "len raises": _module(__len__=_raises(Oddity("len of the module"))),
    "repr raises": _module(__repr__=_raises(Oddity("repr of the module"))),
    "class raises": _module(__class__=property(_raises(Oddity("class of the module")))),
    "class interrupts": _module(__class__=property(_raises(Interruption("class of the module")))),
    "forward raises": _module(forward=_raises(Oddity("forward"))),
    "forward interrupts": _module(forward=_raises(KeyboardInterrupt("forward"))),
    "named parameters raise": _module(named_parameters=_raises(Oddity("named parameters"))),
    "modules raise": _module(named_modules=_raises(Oddity("named modules"))),
    "train mode raises": _module(training=property(_raises(Oddity("training")))),
}


def _optimizer(**methods: Any) -> MakeOptimizer:
    def make(log: Log, module: Any) -> Any:
        def bound(name: str, method: Any) -> Any:
            def call(*arguments: Any) -> Any:
                log.call(f"optimizer.{name}")
                return method(*arguments)

            return call if callable(method) else method

        functions = {name: bound(name, method) for name, method in methods.items()}
        return type("OddOptimizer", (torch.optim.SGD,), functions)(_parameters(module), lr=0.1)

    return make


def _parameters(module: Any) -> list[Any]:
    return list(nn.Module.parameters(module)) or [nn.Parameter(torch.ones(1))]


def _plain(kind: Any, **settings: Any) -> MakeOptimizer:
    return lambda _, module: kind(_parameters(module), **settings)


def _hooked(error: BaseException | None, before: bool) -> MakeOptimizer:
    """An optimizer with a step hook that raises in the fifth step."""

    def make(log: Log, module: Any) -> Any:
        optimizer = torch.optim.SGD(_parameters(module), lr=0.1)
        steps: list[int] = []

        def hook(*_: Any) -> None:
            log.call("step hook")
            steps.append(1)
            if error is not None and len(steps) == 5:
                raise fresh(error)

        (optimizer.register_step_pre_hook if before else optimizer.register_step_post_hook)(hook)
        return optimizer

    return make


def _closure(kind: Any) -> MakeOptimizer:
    def make(log: Log, module: Any) -> Any:
        optimizer = kind(_parameters(module), lr=0.01)

        def closure() -> Any:
            log.call("closure")
            optimizer.zero_grad()
            loss = module(torch.ones(2, FEATURES)).mean()
            loss.backward()
            return loss

        optimizer.closure_of_probe = (closure,)
        return optimizer

    return make


class _Wrapper:
    """Wraps an optimizer, as Accelerate does."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def step(self) -> None:
        self.inner.step()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class _InThread(_Wrapper):
    """Steps in another thread."""

    def step(self) -> None:
        thread = threading.Thread(target=self.inner.step)
        thread.start()
        thread.join()


class _OddMeta(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise Oddity("name of the class")

    def __eq__(cls, other: object) -> bool:
        raise Oddity("eq of the class")

    __hash__ = type.__hash__


def _odd_groups(**values: Any) -> MakeOptimizer:
    def make(_: Log, module: Any) -> Any:
        optimizer = torch.optim.SGD(_parameters(module), lr=0.1)
        optimizer.param_groups[0].update(values)
        return optimizer

    return make


class _GroupsRaise(torch.optim.SGD):
    """Its groups raise for everyone but its own step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.__dict__["groups_of_probe"]:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data -= 0.1 * parameter.grad

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.__dict__["groups_of_probe"]:
            for parameter in group["params"]:
                parameter.grad = None

    @property
    def param_groups(self) -> Any:
        if "groups_done" in self.__dict__:
            raise Oddity("groups")
        return self.__dict__.setdefault("groups_of_probe", [])

    @param_groups.setter
    def param_groups(self, value: Any) -> None:
        self.__dict__["groups_of_probe"] = value


def _groups_raise(_: Log, module: Any) -> Any:
    optimizer = _GroupsRaise(_parameters(module), lr=0.1)
    optimizer.__dict__["groups_done"] = True
    return optimizer


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "ordinary": _plain(torch.optim.SGD, lr=0.1),
    "adam": _plain(torch.optim.Adam, lr=0.01),
    "fused adam": _plain(torch.optim.AdamW, lr=0.01, fused=True),
    "closure": _closure(torch.optim.SGD),
    "lbfgs": _closure(torch.optim.LBFGS),
    "hash raises": _optimizer(__hash__=_raises(Oddity("hash of the optimizer"))),
    "hash none": _optimizer(__hash__=None),
    "hash interrupts": _optimizer(__hash__=_raises(Interruption("hash of the optimizer"))),
    "eq raises": _optimizer(__eq__=_raises(Oddity("eq of the optimizer")), __hash__=lambda _: 1),
    "eq is array": _optimizer(__eq__=lambda *_: numpy.ones(3), __hash__=lambda _: 1),
    "bool raises": _optimizer(__bool__=_raises(Oddity("bool of the optimizer"))),
    "repr raises": _optimizer(__repr__=_raises(Oddity("repr of the optimizer"))),
    "class raises": lambda _, module: type(
        "OddOptimizer", (torch.optim.SGD,), {"__class__": property(_raises(Oddity("class of the optimizer")))}
    )(_parameters(module), lr=0.1),
    "getattr raises": _optimizer(__getattr__=_raises(Oddity("getattr of the optimizer"))),
    "step raises": _optimizer(step=_raises(Oddity("step"))),
    "groups raise": _groups_raise,
    "foreach is a list": _odd_groups(extra=[1], foreach=None, fused=None, note=object()),
    "odd metaclass": lambda _, module: _OddMeta("OddClass", (torch.optim.SGD,), {})(_parameters(module), lr=0.1),
    "counting hook": _hooked(None, before=True),
    "pre hook raises": _hooked(Oddity("hook"), before=True),
    "post hook raises": _hooked(Oddity("hook"), before=False),
    "post hook interrupts": _hooked(KeyboardInterrupt("hook"), before=False),
    "post hook stops": _hooked(StopIteration("hook"), before=False),
    "wrapper": lambda _, module: _Wrapper(torch.optim.SGD(_parameters(module), lr=0.1)),
    "in thread": lambda _, module: _InThread(torch.optim.SGD(_parameters(module), lr=0.1)),
}
