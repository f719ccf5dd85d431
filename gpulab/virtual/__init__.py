"""A run without a GPU: what can be played, the CUDA device that programs see, and the clock that tells what it takes.

    tape                 what a program did, in order; gpulab.hardware has the GPUs that can be played
    fake                 the CUDA device that programs see: it writes the tape
    prices, host         what work takes on the GPU; what calling it takes on the host
    feeding, room        DataLoaders, which run for real; memory, and what fits
    clock, log, session  virtual time, the events that come of it, and the run
    versions, trial      whether this version of PyTorch can be played to

with gpulab.virtual_gpu("h100") as gpu:
train()                                  # ordinary CUDA code
print(gpulab.report(gpu.run))                # virtual H100, estimated

gpulab.virtual.fits(step, "t4", batch=64)
gpulab.virtual.max_batch(step, "a100")
gpulab.virtual.compare_gpus(step, ["t4", "l4", "a100", "h100"], batch=64)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulab.views.virtual_gpu.compare_gpus import compare_gpus, fits, max_batch
    from gpulab.virtual.selftest.run import selftest

__all__ = ["compare_gpus", "fits", "max_batch", "selftest"]


def __getattr__(name: str) -> Any:
    # What these give shows itself, so they stand in the views: to the right of this package, and asked for by name.
    import importlib

    if name == "selftest":
        return importlib.import_module("gpulab.virtual.selftest.run").selftest
    if name in __all__:
        return getattr(importlib.import_module("gpulab.views.virtual_gpu.compare_gpus"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
