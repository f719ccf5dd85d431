"""Host cost of a virtual GPU's program: PyTorch operators and CUDA runtime calls, scaled to this CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache

from gpulab.sensors.host.environment import cpu_name
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.op_classes import base_name, has_no_kernel, op_class
from gpulab.virtual.host.calibration import CpuSlowdown, measure_slowdown
from gpulab.virtual.op_log.ops import Op, Phase
from gpulab.wording import ratio

# Host time of an operator without its launch calls, in ns: in forward, where autograd records it, and elsewhere. From
# published traces of hosts with a V100, an A100, two H100 and a B200: median operator duration, minus the runtime calls
# inside, minus the profiler's overhead (1 us per nested operator, 0.5 us for the operator itself).
# tests/test_virtual_host.py checks these values against the traces.
DISPATCH_NS: Mapping[OpClass, tuple[int, int]] = {
    OpClass.PRODUCT: (30_000, 21_000),  # cuBLAS selects a kernel in every call
    OpClass.BATCHED: (22_000, 20_000),
    OpClass.CONVOLUTION: (30_000, 45_000),  # elsewhere: backward, which makes two cuDNN calls
    OpClass.ATTENTION: (25_000, 22_000),
    OpClass.RECURRENT: (60_000, 60_000),  # not in those traces
    OpClass.ELEMENTWISE: (8_500, 6_000),
    OpClass.COPY: (9_500, 8_500),
    OpClass.NORM: (20_000, 19_000),
    OpClass.SOFTMAX: (9_000, 8_500),
    OpClass.REDUCTION: (17_000, 14_000),
    OpClass.POOL: (17_000, 17_000),
    OpClass.INDEXING: (14_000, 15_000),
    OpClass.OPTIMIZER: (8_000, 8_000),
    OpClass.OTHER: (20_000, 18_000),
}
BATCH_NORM_NS = (37_000, 26_000)  # every call allocates seven tensors
COPY_INTO_NS = (5_000, 4_500)  # copy_, which allocates nothing
LIST_TENSOR_NS = 250  # per tensor of a _foreach or fused operator's longest list; 161 tensors took 90 us while profiled
VIEW_NS = (1_300, 900)
EMPTY_NS = 3_000
NODE_NS = 4_000  # autograd engine, per backward operator or accumulated gradient: 2 to 7 us
COPY_NS = 7_000  # the operator (aten::to, copy_ or item) around a copy between host and GPU

# CUDA runtime calls. The traces' medians for a launch are 4.5 (H100), 5.2 (V100), 6 (A100) and 6.6 us (B200), which
# includes profiler overhead. They cannot be measured without a GPU, so they scale with this CPU's operator call speed.
LAUNCH_NS = 4_500
COPY_CALL_NS = 6_000  # cudaMemcpyAsync: 4.6 to 13.8 us
SYNC_CALL_NS = 5_000  # a synchronizing call with nothing to wait for: 2 to 14 us
EVENT_NS = 1_500  # cudaEventRecord, cudaStreamWaitEvent: 1 to 3.5 us
ALLOC_NS = 200_000  # cudaMalloc: 200 to 284 us

# Uncertainty of a host's costs as factors (P10, P90). The total costs of the V100, A100 and both H100 hosts are 0.8 to
# 1.4 times these values, and three of four operator classes 0.5 to 2 times; the B200 host is at 3.6, mostly from a few
# first calls of matrix products. Not checked on other CPUs: that GPU operators slow down like tiny CPU operators.
HOST_COST_FACTORS = (0.65, 1.6)


@dataclass(frozen=True, kw_only=True)
class HostCosts:
    """Cost model of the thread that calls PyTorch; its factors are slowdowns relative to the reference CPU."""

    cpu: str | None = None  # the CPU that was measured; None for the reference CPU
    measured_at: str | None = None  # time of the measurement, ISO date and time
    dispatch_factor: float = 1.0
    autograd_factor: float = 1.0

    @classmethod
    def reference(cls) -> HostCosts:
        """Return the reference host: a server CPU as in rented GPU machines of 2019 to 2024; measures nothing."""
        return cls()

    def __str__(self) -> str:
        if self.measured_at is None:
            return "a typical server CPU (reference values; the CPU of this computer was not used)"
        speed_ratio = ratio(1 / self.dispatch_factor)
        return f"{self.cpu or 'this CPU'}, measured {self.measured_at}: {speed_ratio} the speed of a typical server CPU"

    def scaled(self, factor: float) -> HostCosts:
        """Return a host that is slower by a factor."""
        return replace(
            self, dispatch_factor=self.dispatch_factor * factor, autograd_factor=self.autograd_factor * factor
        )

    def dispatch_ns(self, op: Op) -> int:
        """Return the host time of an operator, without its kernel launches."""
        backward = op.phase is Phase.BACKWARD
        call_ns = _call_ns(op.name, op.is_view, op.phase is Phase.FORWARD) + LIST_TENSOR_NS * op.list_length
        node = backward and (not op.is_view or base_name(op.name) == "detach")  # accumulating a gradient detaches it
        return round(call_ns * self.dispatch_factor + NODE_NS * self.autograd_factor * node)

    @property
    def copy_dispatch_ns(self) -> int:
        """Host time of the operator around a copy between host and GPU."""
        return round(COPY_NS * self.dispatch_factor)

    @property
    def launch_ns(self) -> int:
        """cudaLaunchKernel, if the launch queue is not full."""
        return round(LAUNCH_NS * self.dispatch_factor)

    @property
    def copy_call_ns(self) -> int:
        """cudaMemcpyAsync, without waiting."""
        return round(COPY_CALL_NS * self.dispatch_factor)

    @property
    def sync_call_ns(self) -> int:
        """A synchronizing call, without the wait."""
        return round(SYNC_CALL_NS * self.dispatch_factor)

    @property
    def event_ns(self) -> int:
        """Call to cudaEventRecord or cudaStreamWaitEvent."""
        return round(EVENT_NS * self.dispatch_factor)

    @property
    def alloc_ns(self) -> int:
        """cudaMalloc, which PyTorch's allocator calls if no cached block fits."""
        return round(ALLOC_NS * self.dispatch_factor)


@cache
def calibrated_host() -> HostCosts:
    """Return the cost model of this CPU, measured once per process, in about a second."""
    cpu_speed: CpuSlowdown = measure_slowdown()
    return HostCosts(
        cpu=cpu_name(),
        measured_at=datetime.now().astimezone().isoformat(timespec="seconds"),
        dispatch_factor=cpu_speed.dispatch,
        autograd_factor=cpu_speed.autograd,
    )


@cache
def _call_ns(name: str, view: bool, forward: bool) -> int:
    """Return the call overhead of an operator on the reference CPU, in ns."""
    column = 0 if forward else 1
    if view:
        return VIEW_NS[column]
    if has_no_kernel(name):
        return EMPTY_NS
    if "batch_norm" in name:
        return BATCH_NORM_NS[column]
    if base_name(name) == "copy":
        return COPY_INTO_NS[column]
    return DISPATCH_NS[op_class(name)][column]
