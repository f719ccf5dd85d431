"""Traces of torch.profiler (Kineto's JSON), of every version since 1.8 -> Run."""

from gpulab.trace.blocks import is_trace
from gpulab.trace.kineto import read
from gpulab.trace.limits import Limits

__all__ = ["Limits", "is_trace", "read"]
