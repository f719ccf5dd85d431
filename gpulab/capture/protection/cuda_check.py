"""Ask whether there is a CUDA GPU without initialising CUDA: a process that did cannot fork workers that use the GPU.

torch.cuda.is_available() asks the CUDA runtime, which initialises the driver, unless the environment variable
PYTORCH_NVML_BASED_CUDA_CHECK is 1: then it asks NVML, and the runtime only if NVML does not answer.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from gpulab.deferred_signals import DeferredSignals

VARIABLE = "PYTORCH_NVML_BASED_CUDA_CHECK"
_NO_CUDA = re.compile(  # the messages of torch.cuda's initialisation
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available|NVIDIA driver .* too old"
    r"|CUDA driver initialization failed"
)


def is_cuda_available() -> bool:
    """Whether PyTorch can use a CUDA GPU; for every question of ours that the program has not asked itself."""
    import torch

    with DeferredSignals(again=True), nvml_first():
        return bool(torch.cuda.is_available())


def is_missing_cuda(error: BaseException | None) -> bool:
    """Whether this is PyTorch's error for CUDA code on a machine without a CUDA GPU."""
    return type(error) in (AssertionError, RuntimeError) and _NO_CUDA.search(str(error)) is not None


@contextlib.contextmanager
def nvml_first() -> Iterator[None]:
    """In the block, PyTorch asks NVML whether there is a GPU. For calls of PyTorch that ask it, such as its profiler's.

    PyTorch reads the variable at each call; nothing else does.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
