"""Where in its training a program is: modules that run forward, optimizers that step, what memory is for."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.recorder import Recorder
from gpulab.virtual.device.tensors.storages import Storages
from gpulab.virtual.device.tensors.tensor_info import on_gpu
from gpulab.virtual.device.torch_api.patches import swap
from gpulab.virtual.op_log.ops import Role


class Training:
    """Follows modules and optimizers by PyTorch's own hooks."""

    def __init__(self, recorder: Recorder, storages: Storages) -> None:
        self._recorder, self._storages = recorder, storages
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()  # modules that the program calls itself
        self._running: list[Any] = []

    def install(self, stack: ExitStack) -> None:
        """Until the stack is closed."""
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        handles = [
            module.register_module_forward_pre_hook(self._module_begins),
            module.register_module_forward_hook(self._module_ended, always_call=True),
            optimizer.register_optimizer_step_pre_hook(self._step_begins),
            optimizer.register_optimizer_step_post_hook(self._stepped),
        ]
        for handle in handles:
            stack.callback(handle.remove)
        entered, left = self._ranges()
        swap(stack, torch.autograd.profiler.record_function, __enter__=entered, __exit__=left)

    # Modules.

    def _module_begins(self, module: Any, args: Any) -> None:
        recorder = self._recorder
        recorder.entered()
        if not recorder.began and any(on_gpu(each) for each in args):
            recorder.began = True
        if not self._running:
            self._roots.add(module)
        self._running.append(module)
        recorder.module_depth = len(self._running)
        recorder.left()

    def _module_ended(self, module: Any, args: Any, out: Any) -> None:
        self._recorder.entered()
        while self._running:  # those whose forward failed before their hooks ran as well
            if self._running.pop() is module:
                break
        self._recorder.module_depth = len(self._running)
        self._recorder.left()

    # Optimizers.

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        recorder.entered()
        recorder.began = recorder.optimizing = True
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                self._tell(parameter.grad, Role.GRADIENT)
        recorder.left()

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        recorder.entered()
        for parameter in _parameters(optimizer):
            self._tell(parameter, Role.PARAMETER)
        for root in list(self._roots):
            for buffer in root.buffers():
                self._tell(buffer, Role.PARAMETER)
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                self._tell(value, Role.OPTIMIZER)
        recorder.optimizing = False
        recorder.stepped()
        recorder.left()

    def _tell(self, value: Any, role: Role) -> None:
        if on_gpu(value):
            self._storages.role(value, role)

    def _ranges(self) -> tuple[Any, Any]:
        import torch

        recorder = self._recorder
        plain: Any = torch.autograd.profiler.record_function
        enter, leave = plain.__enter__, plain.__exit__

        def entered(self: Any) -> Any:
            recorder.entered()
            recorder.range(self.name, opens=True)
            made = enter(self)
            recorder.left()
            return made

        def left(self: Any, *error: Any) -> None:
            recorder.entered()
            leave(self, *error)
            if self.name.startswith("Optimizer.step#"):
                recorder.optimizing = False  # also where the step failed
            recorder.range(self.name, opens=False)
            recorder.left()

        return entered, left


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
