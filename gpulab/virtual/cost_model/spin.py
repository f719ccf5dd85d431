"""The spin kernel of torch.cuda._sleep, which only waits."""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.rates import kernel_rates


def spin_kernel(cycles: int, spec: GpuSpec) -> Kernel:
    """Return the kernel that torch.cuda._sleep launches: one thread that reads the clock for `cycles` cycles."""
    spin_ns = max(0, cycles) * 1e3 / spec.sm_clock_mhz
    return Kernel(
        name="at::cuda::(anonymous namespace)::spin_kernel(long)",
        ns=max(kernel_rates(spec).fixed_ns, spin_ns),
        grid=1,
        block=1,
        registers=16,
        shared_bytes=0,
        op_class=OpClass.SPIN,
    )
