"""Calls by which a program trains: backward(), and the closures that optimizers call.

A program without an optimizer and a DataLoader updates its parameters by hand: each backward pass ends a step. In
`optimizer.step(closure)`, as in LBFGS and in Lightning, the time of the closure is not the optimizer's.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType, FunctionType, MethodType
from typing import Any

from gpulab.capture.hooks.user_variables import visible_values
from gpulab.capture.protection.guard import Guard
from gpulab.capture.protection.uncompiled import call_uncompiled, leave_uncompiled

STEP_MARKS, BACKWARD_STEPS, CLOSURES = "step marks", "steps by backward passes", "closures of optimizers"
_CALLS_BEFORE = 4  # an optimizer has stepped by then, unless it accumulates gradients,
_CALLS_BEFORE_WITH_OPTIMIZER = 64  # or is compiled by torch.compile, so that no hook sees it
_KINDS = (FunctionType, MethodType, functools.partial)  # of closures; an object of another class may be more than that


class TrainingCalls:
    """Watches the thread that created it.

    on_update: called after each step of an optimizer, with it. on_backward: called after each backward pass of a
    program in which no optimizer has stepped; not within a backward pass, as for activation checkpointing. on_closure:
    called after each closure. In code that torch.compile has compiled, nothing is called.
    """

    def __init__(
        self,
        guard: Guard,
        on_update: Callable[[Any], None],
        on_backward: Callable[[], None],
        on_closure: Callable[[], None],
    ) -> None:
        self._guard = guard
        self._on_update, self._on_backward, self._on_closure = on_update, on_backward, on_closure
        self._thread = threading.get_ident()
        self._calls = 0
        self._calls_before = _CALLS_BEFORE
        self._has_stepped = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace `torch.autograd.backward`, which `Tensor.backward` calls, and hook optimizers."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        module: Any = torch.autograd
        original = module.backward
        installed = threading.Event()  # a flag that a patch of the user's, made on top of ours, may outlive

        def marked_backward(*arguments: Any, **options: Any) -> Any:
            __tracebackhide__ = True  # an error in the user's code should show only the user's lines
            result = original(*arguments, **options)
            if torch.compiler.is_compiling() or self._has_stepped or not installed.is_set():
                return result
            if threading.get_ident() == self._thread:
                call_uncompiled(self._guard.call, BACKWARD_STEPS, self._backward_called, None, sys._getframe(1))
            return result

        def restore() -> None:
            installed.clear()
            if module.backward is marked_backward:
                module.backward = original

        self._undo.append(restore)
        self._undo.append(register_optimizer_step_pre_hook(self._optimizer_steps).remove)
        self._undo.append(register_optimizer_step_post_hook(self._optimizer_stepped).remove)
        installed.set()
        leave_uncompiled(marked_backward.__code__)  # a compiled step calls it from outside of its graphs
        module.backward = functools.update_wrapper(marked_backward, original, updated=())

    def remove(self) -> None:
        """Restore torch; a patch that the user's code put over ours stays."""
        while self._undo:
            self._undo.pop()()

    def _backward_called(self, caller: FrameType) -> None:
        import torch

        if torch._C._current_graph_task_id() != -1 or _is_called_by_optimizer(caller):
            return
        self._calls += 1
        if self._calls == _CALLS_BEFORE and _sees_optimizer(caller):
            self._calls_before = _CALLS_BEFORE_WITH_OPTIMIZER
        if self._calls >= self._calls_before:
            self._on_backward()

    def _optimizer_stepped(self, optimizer: Any, *_: Any) -> None:
        import torch

        if not torch.compiler.is_compiling() and threading.get_ident() == self._thread:
            self._has_stepped = True
            call_uncompiled(self._guard.call, STEP_MARKS, self._on_update, None, optimizer)

    def _optimizer_steps(self, optimizer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Replace the closure by one that notes its end; None if there is none.

        Code that torch.compile compiles runs without hooks.
        """
        import torch

        if torch.compiler.is_compiling():
            return None
        is_of_torch = str(type(optimizer).__module__).startswith("torch.optim.")
        kinds = _KINDS if is_of_torch else (FunctionType,)  # others may read more of it than that it can be called
        if len(arguments) > 1 and type(arguments[1]) in kinds:
            return (arguments[0], self._noted(arguments[1]), *arguments[2:]), options
        if type(options.get("closure")) in kinds:
            return arguments, {**options, "closure": self._noted(options["closure"])}
        return None

    def _noted(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(closure, updated=())
        def noted_closure(*arguments: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            result = closure(*arguments, **options)
            if self._undo and threading.get_ident() == self._thread:
                self._guard.call(CLOSURES, self._on_closure, None)
            return result

        if type(closure) is FunctionType:
            noted_closure.__dict__ = closure.__dict__  # what an optimizer notes at the one is noted at the other
        return noted_closure


def _is_called_by_optimizer(caller: FrameType) -> bool:
    """Whether an optimizer calls this code, such as LBFGS its closure."""
    frame: FrameType | None = caller
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.optim."):
            return True
        frame = frame.f_back
    return False


def _sees_optimizer(caller: FrameType) -> bool:
    """Whether an optimizer is among the user's variables."""
    from torch.optim import Optimizer

    return any([issubclass(type(value), Optimizer) for _, value in visible_values(caller)])
