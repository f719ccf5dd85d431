"""The virtual GPU: unmodified CUDA code runs on a PyTorch without CUDA, and every operation is recorded.

`with FakeDevice(spec, sink, memory, clock):` makes torch.cuda available. Tensors on cuda have sizes but no values; CPU
tensors are real. Every operator, copy and wait goes to the sink as a record of gpulab.virtual.op_log.ops, and every
allocation to the memory. On exit torch is restored.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from gpulab.errors import CaptureError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.device.operators import cudnn_rnn, grouped_mm, missing_shape_rules, rnn_cells, single_kernel
from gpulab.virtual.device.operators.autocast import AutocastKernels
from gpulab.virtual.device.operators.data_dependent import DataDependentOps
from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.simulated_device import SimulatedDevice
from gpulab.virtual.device.tensors.fake_tensors import fake_mode
from gpulab.virtual.device.tensors.host_copies import CopyOps
from gpulab.virtual.device.tensors.pinned import PinnedStorages
from gpulab.virtual.device.tensors.storages import StorageMemory
from gpulab.virtual.device.torch_api import (
    distributed,
    flex_attention,
    internals,
    modules,
    tensor_methods,
    threads,
)
from gpulab.virtual.device.torch_api.function_mode import function_mode
from gpulab.virtual.device.torch_api.patches import registered_kernels
from gpulab.virtual.device.torch_api.streams import VirtualTime
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory
from gpulab.virtual.op_log.ops import RecordSink

_ACTIVE: list[FakeDevice] = []


class FakeDevice(SimulatedDevice):
    """One virtual GPU, for one `with` block."""

    def __init__(self, spec: GpuSpec, sink: RecordSink, memory: SimulatedMemory, clock: VirtualTime) -> None:
        super().__init__(spec, memory, clock)
        self._sink = sink
        self._used = False

    def __enter__(self) -> FakeDevice:
        if _ACTIVE or self._used:
            raise CaptureError(
                "A virtual GPU is already active." if _ACTIVE else "This virtual GPU was used before.",
                why="a virtual GPU patches torch: only one can be active, and each serves one `with` block",
                fix="leave the first `with` block, then create a new virtual GPU",
            )
        self._used = True
        _ACTIVE.append(self)
        stack = ExitStack()
        stack.callback(_ACTIVE.clear)
        try:
            self._install(stack)
        except BaseException:
            stack.close()
            raise
        self._stack = stack
        return self

    def _install(self, stack: ExitStack) -> None:
        recorder = self.recorder = OpRecorder(self._sink)
        stack.callback(recorder.close)
        storages = self.storages = StorageMemory(self.memory, recorder)
        stack.callback(storages.clear)
        pinned = PinnedStorages()
        stack.callback(pinned.clear)
        mode = fake_mode()(allow_fallback_kernels=False)  # fallback kernels would run on CUDA
        autocast = AutocastKernels()
        gpu_kernels = single_kernel.kernels(self.spec.generation)
        overrides = {
            **CopyOps(self._assumptions, pinned).overrides(),
            **DataDependentOps(self._assumptions).overrides(),
            **missing_shape_rules.overrides(),
            **grouped_mm.overrides(self.spec.generation, self._assumptions),
            **cudnn_rnn.overrides(),
            **rnn_cells.overrides(),
            **distributed.overrides(),
            **internals.undecomposed_overrides(gpu_kernels),
        }
        mode.attach(recorder, storages, overrides)
        mode.pin = pinned.add
        stack.callback(setattr, mode, "closed", True)
        internals.install(stack, autocast)
        tensor_methods.install(stack, storages, pinned)
        modules.install(stack)
        flex_attention.install(stack, self._assumptions)
        self._install_torch(stack, recorder, storages)
        stack.enter_context(registered_kernels(gpu_kernels, "AutogradCUDA"))
        stack.enter_context(registered_kernels(autocast.kernels(), "AutocastCUDA"))
        calls = function_mode()()
        calls.recorder = recorder
        stack.callback(setattr, calls, "closed", True)
        mode.is_meta_requested = lambda: calls.meta_requested
        threads.install(stack, mode, calls)
        stack.enter_context(mode)
        stack.enter_context(calls)
        recorder.muted = True
        self._calibrate(recorder)
        recorder.muted = False

    @staticmethod
    def _calibrate(recorder: OpRecorder) -> Any:
        import torch

        tensor = torch.empty(1)
        recorder.calibrate(lambda: torch.numel(tensor))
