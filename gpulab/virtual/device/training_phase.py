"""Track the phase of a training step (forward, backward, optimizer) and what memory is used for."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.tensors.storages import StorageMemory
from gpulab.virtual.device.tensors.tensor_info import is_gpu_tensor
from gpulab.virtual.device.torch_api.patches import patch_attributes
from gpulab.virtual.op_log.ops import Role


class PhaseTracker:
    """Follows modules and optimizers with PyTorch's global hooks."""

    def __init__(self, recorder: OpRecorder, storages: StorageMemory) -> None:
        self._recorder, self._storages = recorder, storages
        self._roots: weakref.WeakSet[Any] = weakref.WeakSet()  # modules that the program calls directly
        self._running: list[Any] = []

    def install(self, stack: ExitStack) -> None:
        """Install the hooks until the stack is closed."""
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer

        handles = [
            module.register_module_forward_pre_hook(self._before_forward),
            module.register_module_forward_hook(self._after_forward, always_call=True),
            optimizer.register_optimizer_step_pre_hook(self._before_step),
            optimizer.register_optimizer_step_post_hook(self._after_step),
        ]
        for handle in handles:
            stack.callback(handle.remove)
        enter_range, exit_range = self._recorded_ranges()
        patch_attributes(stack, torch.autograd.profiler.record_function, __enter__=enter_range, __exit__=exit_range)

    # Modules.

    def _before_forward(self, module: Any, args: Any) -> None:
        recorder = self._recorder
        recorder.entered()
        if not recorder.training_started and any(is_gpu_tensor(each) for each in args):
            recorder.training_started = True
        if not self._running:
            self._roots.add(module)
        self._running.append(module)
        recorder.module_depth = len(self._running)
        recorder.left()

    def _after_forward(self, module: Any, args: Any, out: Any) -> None:
        self._recorder.entered()
        while self._running:  # also removes modules whose forward failed before their hook ran
            if self._running.pop() is module:
                break
        self._recorder.module_depth = len(self._running)
        self._recorder.left()

    # Optimizers.

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        recorder.entered()
        recorder.training_started = recorder.in_optimizer_step = True
        for parameter in _parameters(optimizer):
            if parameter.grad is not None:
                self._set_role(parameter.grad, Role.GRADIENT)
        recorder.left()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder = self._recorder
        recorder.entered()
        for parameter in _parameters(optimizer):
            self._set_role(parameter, Role.PARAMETER)
        for root in list(self._roots):
            for buffer in root.buffers():
                self._set_role(buffer, Role.PARAMETER)
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                self._set_role(value, Role.OPTIMIZER)
        recorder.in_optimizer_step = False
        recorder.step_end()
        recorder.left()

    def _set_role(self, value: Any, role: Role) -> None:
        if is_gpu_tensor(value):
            self._storages.set_role(value, role)

    def _recorded_ranges(self) -> tuple[Any, Any]:
        import torch

        recorder = self._recorder
        record_function: Any = torch.autograd.profiler.record_function
        original_enter, original_exit = record_function.__enter__, record_function.__exit__

        def enter_range(self: Any) -> Any:
            recorder.entered()
            recorder.range(self.name, is_start=True)
            result = original_enter(self)
            recorder.left()
            return result

        def exit_range(self: Any, *error: Any) -> None:
            recorder.entered()
            original_exit(self, *error)
            if self.name.startswith("Optimizer.step#"):
                recorder.in_optimizer_step = False  # also if the step failed
            recorder.range(self.name, is_start=False)
            recorder.left()

        return enter_range, exit_range


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
