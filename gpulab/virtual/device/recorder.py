"""Writes the tape: what ran, in which phase and stream, and how much of the program's own time came before it.

Its own time is what it spends in Python between calls of PyTorch, and what its real CPU tensors take to compute; that
others had the core in between is none of it.
"""

from __future__ import annotations

import threading
from time import perf_counter_ns
from typing import Any

from gpulab.virtual.device.tensors.op_cache import Outcome
from gpulab.virtual.device.tensors.tensor_info import seen, tensors_in
from gpulab.virtual.host.core_waits import LONG_NS, CoreWaits
from gpulab.virtual.op_log.ops import Copy, Hold, HostOp, Op, Phase, Range, Signal, Sink, Spin, Stepped, Wait, Way

DEFAULT_STREAM = 7  # as traces number it
EMPTY_CALLS = 60  # timed to learn what a call costs by itself
SPARED_NS = 2_500  # what a fake tensor's birth and death cost the program beyond an empty call, measured


class Recorder:
    """What is known of the program at this moment, and the records made of it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.stream = DEFAULT_STREAM
        self.module_depth = 0  # in so many modules' forward, one inside the other, the program is
        self.began = False  # the first step has begun
        self.optimizing = False
        self.muted = False
        self._python_ns = 0
        self._waits = CoreWaits()
        self._left_ns = perf_counter_ns()  # when the program last got the word
        self._within = 0
        self._main = threading.get_ident()
        self.step_over_ns = 0  # what leaving and entering costs by itself, measured

    # The program's own time: all that is not between entered() and left().

    def entered(self) -> None:
        """The program called PyTorch, or us: from here on time is not its own."""
        if threading.get_ident() != self._main:
            return
        self._within += 1
        if self._within == 1:
            own_ns = perf_counter_ns() - self._left_ns - self.step_over_ns
            if own_ns > 0:
                self._python_ns += own_ns if own_ns < LONG_NS else self._waits.without(own_ns)

    def left(self) -> None:
        """The program has the word again."""
        if threading.get_ident() != self._main:
            return
        self._within -= 1
        if self._within == 0:
            self._left_ns = self._waits.begin()

    def begin(self) -> int:
        """The time at which the CPU begins to work for real; `since` tells what that took."""
        return self._waits.begin() if threading.get_ident() == self._main else perf_counter_ns()

    def since(self, begun_ns: int) -> int:
        """What it took."""
        took_ns = perf_counter_ns() - begun_ns
        return self._waits.without(took_ns) if threading.get_ident() == self._main else took_ns

    def close(self) -> None:
        """Nothing more is recorded."""
        self._waits.close()

    def worked(self, spent_ns: int) -> None:
        """The program had the CPU work for real."""
        if threading.get_ident() == self._main:
            self._python_ns += spent_ns

    def measure(self, call: Any) -> None:
        """Learn what a loop of empty calls shows as the program's own time, to leave it out from now on."""
        self.step_over_ns, shown = 0, []
        for _ in range(EMPTY_CALLS):
            self._python_ns = 0
            call()
            shown.append(self._python_ns)
        self.step_over_ns = sorted(shown)[EMPTY_CALLS * 9 // 10] + SPARED_NS
        self._python_ns = 0

    def own_ns(self) -> int:
        """The program's own time since this was asked the last time."""
        own_ns, self._python_ns = self._python_ns, 0
        return own_ns

    # Where the program is.

    @property
    def phase(self) -> Phase:
        """The phase of what runs now."""
        import torch

        if torch._C._current_graph_task_id() != -1:
            return Phase.BACKWARD
        if self.optimizing and not self.module_depth:
            return Phase.OPTIMIZER
        return Phase.FORWARD if self.began else Phase.SETUP

    # Records.

    def op(self, name: str, args: Any, kwargs: Any, out: Any, *, details: tuple[tuple[str, str], ...] = ()) -> None:
        """An operator that we made up the result of ran on the GPU."""
        if self.muted:
            return
        values = [*args, *kwargs.values()] if kwargs else args
        inputs = tuple([seen(each) for each in tensors_in(values) if each.device.type == "cuda"])
        made = out if isinstance(out, list | tuple) else (out,)
        outputs = tuple([seen(each) for each in tensors_in(made)])
        self.ran(Outcome((), "", -1, name, inputs, outputs, 0, False, 0, details), self.phase)

    def ran(self, what: Outcome, phase: Phase) -> None:
        """An operator ran on the GPU."""
        if self.muted:
            return
        self._sink(
            Op(
                name=what.name,
                inputs=what.inputs,
                outputs=what.outputs,
                flops=what.flops,
                view=what.view,
                tf32=_tf32(what.name),
                lists=what.lists,
                details=what.details,
                phase=phase,
                stream=self.stream,
                python_ns=self.own_ns(),
            )
        )

    def host_op(self, name: str, given: Any, ns: int) -> None:
        """An operator ran for real, on the host's own tensors."""
        if not self.muted and threading.get_ident() == self._main:
            inputs = tuple([seen(each) for each in given])
            self._sink(HostOp(name=name, inputs=inputs, ns=ns, phase=self.phase, python_ns=self.own_ns()))

    def spin(self, cycles: int) -> None:
        """A kernel was launched that only lets time pass."""
        if not self.muted:
            own_ns = self.own_ns()
            self._sink(Spin(cycles=cycles, phase=self.phase, stream=self.stream, python_ns=own_ns))

    def copy(self, name: str, way: Way, size: int, *, pinned: bool = False, non_blocking: bool = False) -> None:
        """A copy between host and GPU; that the host waits for one that may block is the clock's to know."""
        if self.muted:
            return
        self._sink(
            Copy(
                name=name,
                way=way,
                bytes=size,
                pinned=pinned,
                non_blocking=non_blocking,
                phase=self.phase,
                stream=self.stream,
                python_ns=self.own_ns(),
            )
        )

    def wait(self, call: str, *, stream: int | None = None, event: int | None = None) -> None:
        """The host waits for the GPU."""
        if not self.muted:
            own_ns = self.own_ns()
            self._sink(Wait(call=call, stream=stream, event=event, phase=self.phase, python_ns=own_ns))

    def signal(self, event: int, stream: int) -> None:
        """An event is recorded in a stream."""
        self._sink(Signal(event=event, stream=stream, python_ns=self.own_ns()))

    def hold(self, event: int, stream: int) -> None:
        """A stream waits for an event from now on."""
        self._sink(Hold(event=event, stream=stream, python_ns=self.own_ns()))

    def range(self, name: str, *, opens: bool) -> None:
        """A named stretch begins or ends."""
        if not self.muted:
            self._sink(Range(name=name, open=opens, python_ns=self.own_ns()))

    def stepped(self) -> None:
        """An optimizer stepped."""
        self._sink(Stepped(python_ns=self.own_ns()))


def _tf32(name: str) -> bool:
    import torch

    by_cudnn = "conv" in name or "rnn" in name
    if not hasattr(torch._C, "_get_fp32_precision_getter"):  # before torch 2.9
        return bool(torch.backends.cudnn.allow_tf32 if by_cudnn else torch.backends.cuda.matmul.allow_tf32)
    # Where a program sets both old and new names, asking by the old ones raises.
    kind = ("rnn" if "rnn" in name else "conv") if by_cudnn else "matmul"
    return bool(torch._C._get_fp32_precision_getter("cuda", kind) == "tf32")
