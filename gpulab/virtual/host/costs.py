"""What calls cost the host of a virtual GPU: PyTorch's operators, the CUDA runtime, modules; scaled to this CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache

from gpulab.sensors.host.environment import cpu_name
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.op_classes import bare, launches_nothing, op_class
from gpulab.virtual.host.calibration import Speed, speed
from gpulab.virtual.op_log.ops import Op, Phase
from gpulab.wording import ratio

# What an operator costs its thread besides the launch calls, in ns: in forward, where autograd writes it down, and
# elsewhere. From published traces of hosts with a V100, an A100, two H100 and a B200: the medians of the operators'
# durations, less the runtime calls inside them, less what recording adds, 1 us for each operator within and half of
# that for the operator itself. tests/test_virtual_host.py holds these against the traces.
DISPATCH_NS: Mapping[OpClass, tuple[int, int]] = {
    OpClass.PRODUCT: (30_000, 21_000),  # cuBLAS picks its kernel each time
    OpClass.BATCHED: (22_000, 20_000),
    OpClass.CONVOLUTION: (30_000, 45_000),  # elsewhere: backward, which calls cuDNN for two
    OpClass.ATTENTION: (25_000, 22_000),
    OpClass.RECURRENT: (60_000, 60_000),  # not in those traces
    OpClass.ELEMENTWISE: (8_500, 6_000),
    OpClass.COPY: (9_500, 8_500),
    OpClass.NORM: (20_000, 19_000),
    OpClass.SOFTMAX: (9_000, 8_500),
    OpClass.REDUCTION: (17_000, 14_000),
    OpClass.POOL: (17_000, 17_000),
    OpClass.SCATTERED: (14_000, 15_000),
    OpClass.OPTIMIZER: (8_000, 8_000),
    OpClass.OTHER: (20_000, 18_000),
}
BATCH_NORM_NS = (37_000, 26_000)  # seven tensors are made for each
COPY_INTO_NS = (5_000, 4_500)  # copy_, for which nothing is made
LISTED_NS = 250  # each tensor of a _foreach or fused operator's longest list; 161 took 90 us, each of them recorded
VIEW_NS = (1_300, 900)
EMPTY_NS = 3_000
NODE_NS = 4_000  # what the autograd engine adds to each operator of backward, or to a gradient that is kept: 2 to 7 us
COPY_NS = 7_000  # aten::to, copy_ or item around a copy between host and GPU

# The runtime's own calls: the medians of those traces, where 4.5 (H100), 5.2 (V100), 6 (A100) and 6.6 us (B200) were
# recorded, which recording itself makes longer. No CPU without a GPU can measure them: they go by how fast it calls.
LAUNCH_NS = 4_500
COPY_CALL_NS = 6_000  # cudaMemcpyAsync: 4.6 to 13.8 us
SYNC_CALL_NS = 5_000  # a call that has nothing to wait for: 2 to 14 us
EVENT_NS = 1_500  # cudaEventRecord, cudaStreamWaitEvent: 1 to 3.5 us
ALLOC_NS = 200_000  # cudaMalloc: 200 to 284 us

# How far a host's costs may lie from these (P10, P90). Those of the V100, the A100 and both H100 lie at 0.8 to 1.4
# times in all, three classes in four at 0.5 to 2; the B200's at 3.6, most of it a few first calls of its products. That
# a GPU's operators grow dearer with the CPU just as tiny ones on a CPU do was not checked on other CPUs.
SPREAD = (0.65, 1.6)


@dataclass(frozen=True, kw_only=True)
class Host:
    """The thread that calls PyTorch, as a price list; its factors say by how much it is slower than the usual CPU."""

    cpu: str | None = None  # the CPU that was measured; None: the usual one
    measured: str | None = None  # when, as ISO date and time
    calling: float = 1.0
    autograd: float = 1.0

    @classmethod
    def usual(cls) -> Host:
        """A server's CPU as in rented machines with a GPU, 2019 to 2024; nothing is measured."""
        return cls()

    def __str__(self) -> str:
        if self.measured is None:
            return "a host with a usual server CPU, not measured"
        return (
            f"a host as fast as {self.cpu or 'this CPU'}, measured {self.measured}: {ratio(1 / self.calling)} the usual"
        )

    def scaled(self, factor: float) -> Host:
        """A host for which everything takes so many times as long."""
        return replace(self, calling=self.calling * factor, autograd=self.autograd * factor)

    def dispatch_ns(self, op: Op) -> int:
        """What an operator costs its thread, without the launches of its kernels."""
        backward = op.phase is Phase.BACKWARD
        called_ns = _called_ns(op.name, op.view, op.phase is Phase.FORWARD) + LISTED_NS * op.lists
        node = backward and (not op.view or bare(op.name) == "detach")  # a kept gradient is detached
        return round(called_ns * self.calling + NODE_NS * self.autograd * node)

    @property
    def copy_dispatch_ns(self) -> int:
        """The operator around a copy between host and GPU."""
        return round(COPY_NS * self.calling)

    @property
    def launch_ns(self) -> int:
        """cudaLaunchKernel, where the queue of launches has room."""
        return round(LAUNCH_NS * self.calling)

    @property
    def copy_call_ns(self) -> int:
        """cudaMemcpyAsync, which does not wait."""
        return round(COPY_CALL_NS * self.calling)

    @property
    def sync_call_ns(self) -> int:
        """A call that waits for the GPU, without the wait."""
        return round(SYNC_CALL_NS * self.calling)

    @property
    def event_ns(self) -> int:
        """Recording an event, or telling a stream to wait for one."""
        return round(EVENT_NS * self.calling)

    @property
    def alloc_ns(self) -> int:
        """cudaMalloc: memory asked of the driver, as PyTorch's allocator does where it holds none that fits."""
        return round(ALLOC_NS * self.calling)


@cache
def calibrated() -> Host:
    """The host as fast as this CPU calls PyTorch, measured once for the process, in about a second."""
    told: Speed = speed()
    return Host(
        cpu=cpu_name(),
        measured=datetime.now().astimezone().isoformat(timespec="seconds"),
        calling=told.calling,
        autograd=told.autograd,
    )


@cache
def _called_ns(name: str, view: bool, forward: bool) -> int:
    """What calling an operator of this name costs on the usual CPU."""
    without = 0 if forward else 1
    if view:
        return VIEW_NS[without]
    if launches_nothing(name):
        return EMPTY_NS
    if "batch_norm" in name:
        return BATCH_NORM_NS[without]
    if bare(name) == "copy":
        return COPY_INTO_NS[without]
    return DISPATCH_NS[op_class(name)][without]
