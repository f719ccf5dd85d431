"""What both simulated CUDA devices (FakeDevice and CountingDevice) share: patches of torch, assumptions, exit."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.tensors.storages import StorageMemory
from gpulab.virtual.device.torch_api import cuda_api, cuda_memory, distributed, save_and_load, unsupported
from gpulab.virtual.device.torch_api.streams import Streams, VirtualTime
from gpulab.virtual.device.training_phase import PhaseTracker
from gpulab.virtual.memory_fit.memory_peaks import SimulatedMemory
from gpulab.virtual.op_log.ops import Assumption


class SimulatedDevice:
    """A simulated CUDA device for one `with` block; subclasses define how it is entered."""

    def __init__(self, spec: GpuSpec, memory: SimulatedMemory, clock: VirtualTime) -> None:
        self.spec, self.memory, self.clock = spec, memory, clock
        self._assumptions = Assumptions()
        self._stack: ExitStack | None = None

    def _install_torch(self, stack: ExitStack, recorder: OpRecorder, storages: StorageMemory) -> None:
        """Patch torch.cuda, torch.save and modules until the stack is closed."""
        cuda_api.install(stack, self.spec, recorder, Streams(recorder, self.clock))
        cuda_memory.install(stack, self.memory)
        save_and_load.install(stack, self._assumptions, recorder)
        distributed.install(stack, self._assumptions)
        unsupported.install(stack, self._assumptions)
        PhaseTracker(recorder, storages).install(stack)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Assumptions about unknown values, in order of first use."""
        return self._assumptions.entries()

    def assume(self, subject: str, value: str) -> None:
        """Note an assumption that another part of the virtual GPU makes."""
        self._assumptions.add(subject, value)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
