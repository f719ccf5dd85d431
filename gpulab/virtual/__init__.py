"""Virtual GPU: run CUDA code without a GPU and estimate its time, kernels and memory.

    device               the CUDA device that programs see; it writes every operator to the op log
    op_log               the records of a virtual run: operations, events, memory
    cost_model           how long kernels and copies take on the GPU
    host                 what dispatch and launches cost on the host, measured on this machine
    loading              DataLoaders, which run for real and are timed
    memory_fit           the simulated caching allocator; which batch sizes fit
    clock                virtual time: gives each record of the op log a start and an end
    assumptions          values that programs read from the GPU, and the values assumed for them
    session              `virtual_gpu`: a recording that becomes a Run
    cuda_available       whether this machine has a CUDA GPU
    self_test            whether the virtual GPU works with the installed PyTorch

The GPUs that can be simulated are in gpulab.hardware.

    with gpulab.virtual_gpu("h100") as gpu:
        train()                              # ordinary CUDA code
    print(gpulab.report(gpu.run))            # virtual H100, estimated

    gpulab.virtual.fits(step, "t4", batch=64)
    gpulab.virtual.max_batch(step, "a100")
    gpulab.virtual.compare_gpus(step, ["t4", "l4", "a100", "h100"], batch=64)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpulab.views.virtual_gpu.compare_gpus import compare_gpus, fits, max_batch
    from gpulab.virtual.self_test.run import selftest

__all__ = ["compare_gpus", "fits", "max_batch", "selftest"]


def __getattr__(name: str) -> Any:
    # These functions return views. Views may import this package but not the reverse, so they are imported on demand.
    import importlib

    if name == "selftest":
        return importlib.import_module("gpulab.virtual.self_test.run").selftest
    if name in __all__:
        return getattr(importlib.import_module("gpulab.views.virtual_gpu.compare_gpus"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
