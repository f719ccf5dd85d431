"""Traces of torch.profiler (Kineto's JSON), of every version since 1.8 -> Run."""

from gpulab.trace.kineto import read
from gpulab.trace.reading.limits import Limits
from gpulab.trace.reading.text_blocks import is_trace

__all__ = ["Limits", "is_trace", "read"]
