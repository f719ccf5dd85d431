"""A GPU that is not there: within it, unmodified CUDA code runs on a PyTorch without CUDA, and is written down.

`with FakeDevice(spec, sink, memory, clock):` makes torch.cuda available. Tensors on cuda have sizes and no numbers;
those on the CPU are real. Every operator, copy and wait goes to the sink as a record of gpulab.virtual.tape, every
allocation to the memory. On leaving, torch is as it was.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any

from gpulab.errors import CaptureError
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.fake import (
    cells,
    cuda_api,
    cuda_memory,
    cudnn_layers,
    files,
    foundations,
    modules,
    one_piece,
    refused,
    tensor_api,
    threads,
    unshaped,
)
from gpulab.virtual.fake.autocast import Autocast
from gpulab.virtual.fake.fakes import fake_mode
from gpulab.virtual.fake.functions import function_mode
from gpulab.virtual.fake.moves import Moves
from gpulab.virtual.fake.patches import kernels
from gpulab.virtual.fake.pinned import Pinned
from gpulab.virtual.fake.recorder import Recorder
from gpulab.virtual.fake.storages import Storages
from gpulab.virtual.fake.streams import Clock, Streams
from gpulab.virtual.fake.training import Training
from gpulab.virtual.fake.unknown import Unknown
from gpulab.virtual.room.memory import Memory
from gpulab.virtual.specs import Spec
from gpulab.virtual.tape import Assumption, Sink

_ACTIVE: list[FakeDevice] = []


class FakeDevice:
    """One virtual GPU, for one `with`."""

    def __init__(self, spec: Spec, sink: Sink, memory: Memory, clock: Clock) -> None:
        self.spec, self.memory, self.clock = spec, memory, clock
        self._sink = sink
        self._assumptions = Assumptions()
        self._stack: ExitStack | None = None
        self._used = False

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What was taken in place of values that nobody knows, in order of first use."""
        return self._assumptions.told()

    def assume(self, what: str, taken: str) -> None:
        """Note an assumption that another part of the virtual GPU makes."""
        self._assumptions.take(what, taken)

    def __enter__(self) -> FakeDevice:
        if _ACTIVE or self._used:
            raise CaptureError(
                "A virtual GPU is running already." if _ACTIVE else "This virtual GPU has been used.",
                why="torch is changed for the time of one virtual GPU, and one only",
                fix="leave the first `with` before the next, and make a new virtual GPU for it",
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def _install(self, stack: ExitStack) -> None:
        recorder = self.recorder = Recorder(self._sink)
        storages = self.storages = Storages(self.memory, recorder)
        stack.callback(storages.forget)
        pinned = Pinned()
        stack.callback(pinned.forget)
        mode = fake_mode()(allow_fallback_kernels=False)  # they would run on CUDA
        autocast = Autocast()
        own = one_piece.kernels(self.spec.generation)
        special = {
            **Moves(self._assumptions, pinned).specials(),
            **Unknown(self._assumptions).specials(),
            **unshaped.specials(),
            **cudnn_layers.specials(),
            **cells.specials(),
            **foundations.whole(own),
        }
        mode.start(recorder, storages, special)
        mode.pin = pinned.add
        stack.callback(setattr, mode, "closed", True)
        foundations.install(stack, autocast)
        streams = Streams(recorder, self.clock)
        cuda_api.install(stack, self.spec, recorder, streams)
        cuda_memory.install(stack, self.memory)
        tensor_api.install(stack, storages, pinned)
        modules.install(stack)
        files.install(stack, self._assumptions, recorder)
        refused.install(stack)
        refused.compile_nothing(stack, self._assumptions)
        Training(recorder, storages).install(stack)
        stack.enter_context(kernels(own, "AutogradCUDA"))
        stack.enter_context(kernels(autocast.kernels(), "AutocastCUDA"))
        calls = function_mode()()
        calls.recorder = recorder
        mode.meta_wanted = lambda: calls.meta
        threads.install(stack, mode, calls)
        stack.enter_context(mode)
        stack.enter_context(calls)
        recorder.muted = True
        self._measure(recorder)
        recorder.muted = False

    @staticmethod
    def _measure(recorder: Recorder) -> Any:
        import torch

        one = torch.empty(1)
        recorder.measure(lambda: torch.numel(one))
