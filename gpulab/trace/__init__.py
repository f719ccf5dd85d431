"""Read traces of torch.profiler (Kineto's JSON, every version since 1.8) into a Run, and write them."""

from gpulab.trace.kineto import read
from gpulab.trace.reading.limits import Limits
from gpulab.trace.reading.text_blocks import is_trace

__all__ = ["Limits", "is_trace", "read"]
