"""Peaks by numeric precision, and how much faster one precision is than another."""

from __future__ import annotations

from enum import IntEnum

from gpulab.hardware.architectures import architecture_of
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.hardware.vendor import is_amd
from gpulab.run import Gpu


class Precision(IntEnum):
    """The precision of the inputs that a kernel multiplies."""

    UNKNOWN = 0
    FLOAT32 = 1
    TF32 = 2  # float32 in memory, 19 bits used in products
    HALF = 3  # float16, bfloat16 and narrower
    FLOAT64 = 4


def peak_flops_per_s(spec: GpuSpec, precision: Precision) -> float | None:
    """Return the peak of a GPU in this precision; None if it has no units for it, or no peak is listed."""
    peaks = {
        Precision.FLOAT32: spec.float32_flops_per_s,
        Precision.TF32: spec.tf32_flops_per_s,
        Precision.HALF: spec.half_flops_per_s,
    }
    return peaks.get(precision)


def precision_speedup(gpu: Gpu | None, to: Precision, than: Precision) -> float | None:
    """Return the speed-up of one precision over another, as the ratio of peaks; None if unknown.

    For an unlisted GPU, it is the minimum over the GPUs of its compute capability.
    """
    if gpu is None or is_amd(gpu.name):
        return None
    spec, architecture = spec_of(gpu), architecture_of(gpu)
    if spec is not None:
        fast, slow = peak_flops_per_s(spec, to), peak_flops_per_s(spec, than)
    else:
        multiples = {
            Precision.FLOAT32: 1.0,
            Precision.TF32: architecture.tf32_speedup if architecture else None,
            Precision.HALF: architecture.half_speedup if architecture else None,
        }
        fast, slow = multiples.get(to), multiples.get(than)
    return fast / slow if fast and slow else None
