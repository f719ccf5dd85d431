"""Write the op log: what ran, in which phase and stream, and how much Python time of the program preceded it.

Python time is the time that the program spends outside PyTorch, plus the time for real work on CPU tensors. Time in
which other processes had the core does not count.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns, thread_time_ns
from typing import Any

from gpulab.virtual.device.endless_loops.guard import LoopGuard
from gpulab.virtual.device.tensors.op_cache import OpOutcome
from gpulab.virtual.device.tensors.tensor_info import describe_tensor, tensors_in
from gpulab.virtual.host.core_waits import LONG_NS, CoreWaits
from gpulab.virtual.op_log.ops import (
    Copy,
    CopyDirection,
    EventRecord,
    HostOp,
    HostWait,
    Op,
    Phase,
    Range,
    RecordSink,
    Spin,
    StepEnd,
    StreamWait,
)

DEFAULT_STREAM = 7  # its number in traces
CALIBRATION_CALLS = 60  # calls timed to measure the overhead of one call
FAKE_TENSOR_NS = 2_500  # measured: cost of creating and freeing a fake tensor, beyond an empty call


class OpRecorder:
    """Tracks the state of the program and writes a record for each operation."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self.stream = DEFAULT_STREAM
        self.module_depth = 0  # nesting depth of module forwards
        self.training_started = False  # the first step has begun
        self.in_optimizer_step = False
        self.muted = False
        self.loops = LoopGuard()
        self._python_ns = 0
        self._core_waits = CoreWaits()
        self._returned_ns = perf_counter_ns()  # when control last returned to the program
        self._call_depth = 0
        self._main_thread = threading.get_ident()
        self.call_overhead_ns = 0  # measured overhead of one left/entered pair

    # Python time of the program: all time outside entered() ... left().

    def entered(self) -> None:
        """The program called PyTorch or gpulab: stop counting Python time."""
        if threading.get_ident() != self._main_thread:
            return
        self._call_depth += 1
        if self._call_depth == 1:
            python_ns = perf_counter_ns() - self._returned_ns - self.call_overhead_ns
            if python_ns > 0:
                self._python_ns += python_ns if python_ns < LONG_NS else self._core_waits.end(python_ns)

    def left(self) -> None:
        """Control returns to the program: count Python time again."""
        if threading.get_ident() != self._main_thread:
            return
        self._call_depth -= 1
        if self._call_depth == 0:
            self._returned_ns = self._core_waits.begin()

    def start_cpu_timer(self) -> tuple[int, int]:
        """Start to time real CPU work; pass the result to `elapsed_cpu_ns`."""
        if threading.get_ident() != self._main_thread:
            return perf_counter_ns(), 0
        used_ns = thread_time_ns()
        return self._core_waits.begin(), used_ns

    def elapsed_cpu_ns(self, start: tuple[int, int]) -> int:
        """Return the ns since `start`, without waits for a core.

        Never less than the CPU time of the thread: the waits may include one shortly before.
        """
        start_ns, used_ns = start
        elapsed_ns = perf_counter_ns() - start_ns
        if threading.get_ident() != self._main_thread:
            return elapsed_ns
        return max(self._core_waits.end(elapsed_ns), min(elapsed_ns, thread_time_ns() - used_ns))

    def close(self) -> None:
        """Stop recording."""
        self._core_waits.close()

    def add_cpu_time(self, elapsed_ns: int) -> None:
        """Add the time of real CPU work to the Python time."""
        if threading.get_ident() == self._main_thread:
            self._python_ns += elapsed_ns

    def calibrate(self, call: Any) -> None:
        """Measure the Python time that empty calls show, and subtract it from now on."""
        self.call_overhead_ns, python_times_ns = 0, []
        for _ in range(CALIBRATION_CALLS):
            self._python_ns = 0
            call()
            python_times_ns.append(self._python_ns)
        self.call_overhead_ns = sorted(python_times_ns)[CALIBRATION_CALLS * 9 // 10] + FAKE_TENSOR_NS
        self._python_ns = 0

    def take_python_ns(self) -> int:
        """Return the Python time since the last call of this method, and reset it."""
        python_ns, self._python_ns = self._python_ns, 0
        return python_ns

    # State of the program.

    @property
    def phase(self) -> Phase:
        """The current phase."""
        import torch

        if torch._C._current_graph_task_id() != -1:
            return Phase.BACKWARD
        if self.in_optimizer_step and not self.module_depth:
            return Phase.OPTIMIZER
        return Phase.FORWARD if self.training_started else Phase.SETUP

    # Records.

    def op(
        self, name: str, args: Any, kwargs: Any, out: Any, *, details: tuple[tuple[str, str], ...] = (), flops: int = 0
    ) -> None:
        """Record an operator on the GPU whose result was made without running it."""
        if self.muted:
            return
        values = [*args, *kwargs.values()] if kwargs else args
        inputs = tuple([describe_tensor(each) for each in tensors_in(values) if each.device.type == "cuda"])
        results = out if isinstance(out, list | tuple) else (out,)
        outputs = tuple([describe_tensor(each) for each in tensors_in(results)])
        self.record_outcome(OpOutcome((), "", -1, name, inputs, outputs, flops, False, 0, details), self.phase)

    def record_outcome(self, outcome: OpOutcome, phase: Phase) -> None:
        """Record an operator on the GPU."""
        if self.muted:
            return
        self._sink(
            Op(
                name=outcome.name,
                inputs=outcome.inputs,
                outputs=outcome.outputs,
                flops=outcome.flops,
                is_view=outcome.is_view,
                tf32=_allows_tf32(outcome.name),
                list_length=outcome.list_length,
                details=outcome.details,
                phase=phase,
                stream=self.stream,
                python_ns=self.take_python_ns(),
            )
        )

    def host_op(self, name: str, tensors: Any, ns: int) -> None:
        """Record an operator that ran for real on CPU tensors."""
        if not self.muted and threading.get_ident() == self._main_thread:
            inputs = tuple([describe_tensor(each) for each in tensors])
            self._sink(
                HostOp(name=name, inputs=inputs, elapsed_ns=ns, phase=self.phase, python_ns=self.take_python_ns())
            )

    def spin(self, cycles: int) -> None:
        """Record a kernel that only waits."""
        if not self.muted:
            python_ns = self.take_python_ns()
            self._sink(Spin(cycles=cycles, phase=self.phase, stream=self.stream, python_ns=python_ns))

    def copy(
        self, name: str, direction: CopyDirection, size: int, *, pinned: bool = False, non_blocking: bool = False
    ) -> None:
        """Record a copy between host and GPU; the clock decides whether it blocks the host."""
        if self.muted:
            return
        self._sink(
            Copy(
                name=name,
                direction=direction,
                bytes=size,
                pinned=pinned,
                non_blocking=non_blocking,
                phase=self.phase,
                stream=self.stream,
                python_ns=self.take_python_ns(),
            )
        )

    def wait(self, call: str, *, stream: int | None = None, event: int | None = None) -> None:
        """Record that the host waits for the GPU."""
        if not self.muted:
            python_ns = self.take_python_ns()
            self._sink(HostWait(call=call, stream=stream, event=event, phase=self.phase, python_ns=python_ns))

    def record_event(self, event: int, stream: int) -> None:
        """Record an event in a stream."""
        self._sink(EventRecord(event=event, stream=stream, python_ns=self.take_python_ns()))

    def stream_wait(self, event: int, stream: int) -> None:
        """Record that a stream waits for an event."""
        self._sink(StreamWait(event=event, stream=stream, python_ns=self.take_python_ns()))

    def range(self, name: str, *, is_start: bool) -> None:
        """Record the start or end of a named range."""
        if not self.muted:
            self._sink(Range(name=name, is_start=is_start, python_ns=self.take_python_ns()))

    def step_end(self) -> None:
        """Record that an optimizer stepped."""
        self.loops.progress()
        self._sink(StepEnd(python_ns=self.take_python_ns()))


def _allows_tf32(name: str) -> bool:
    import torch

    by_cudnn = "conv" in name or "rnn" in name
    if not hasattr(torch._C, "_get_fp32_precision_getter"):  # before torch 2.9
        return bool(torch.backends.cudnn.allow_tf32 if by_cudnn else torch.backends.cuda.matmul.allow_tf32)
    # If a program sets both old and new settings, reading the old ones raises.
    kind = ("rnn" if "rnn" in name else "conv") if by_cudnn else "matmul"
    return bool(torch._C._get_fp32_precision_getter("cuda", kind) == "tf32")
