"""A kernel that lets time pass and does nothing else."""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.cost_model.rates import rates


def spin_kernel(cycles: int, spec: GpuSpec) -> Kernel:
    """What torch.cuda._sleep launches: one thread that reads the multiprocessor's clock until it is so much later."""
    spinning_ns = max(0, cycles) * 1e3 / spec.sm_clock_mhz
    return Kernel(
        name="at::cuda::(anonymous namespace)::spin_kernel(long)",
        ns=max(rates(spec).fixed_ns, spinning_ns),
        grid=1,
        block=1,
        registers=16,
        shared_bytes=0,
        of=OpClass.SPIN,
    )
