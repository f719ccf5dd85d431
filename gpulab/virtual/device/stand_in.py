"""What a device that stands in for CUDA does in either way, played or counted: it is left, and says what it assumed."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.recorder import Recorder
from gpulab.virtual.device.tensors.storages import Storages
from gpulab.virtual.device.torch_api import cuda_api, cuda_memory, save_and_load, unsupported
from gpulab.virtual.device.torch_api.streams import Clock, Streams
from gpulab.virtual.device.training_phase import Training
from gpulab.virtual.memory_fit.memory import Memory
from gpulab.virtual.op_log.ops import Assumption


class Standing:
    """One GPU that is not there, for one `with`; how it is entered is its own."""

    def __init__(self, spec: GpuSpec, memory: Memory, clock: Clock) -> None:
        self.spec, self.memory, self.clock = spec, memory, clock
        self._assumptions = Assumptions()
        self._stack: ExitStack | None = None

    def _install_torch(self, stack: ExitStack, recorder: Recorder, storages: Storages) -> None:
        """What torch.cuda, torch.save and modules are on either stand-in, until the stack is closed."""
        cuda_api.install(stack, self.spec, recorder, Streams(recorder, self.clock))
        cuda_memory.install(stack, self.memory)
        save_and_load.install(stack, self._assumptions, recorder)
        unsupported.install(stack, self._assumptions)
        Training(recorder, storages).install(stack)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What was taken in place of values that nobody knows, in order of first use."""
        return self._assumptions.told()

    def assume(self, what: str, taken: str) -> None:
        """Note an assumption that another part of the virtual GPU makes."""
        self._assumptions.take(what, taken)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
