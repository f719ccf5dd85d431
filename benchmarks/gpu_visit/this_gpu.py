"""The GPU of this machine as a virtual GPU.

NVML is asked, not PyTorch: a stage that waits for its parts must not be another process on the GPU they measure.
"""

from __future__ import annotations

from gpulab.hardware.lookup import spec_of
from gpulab.sensors import describe_machine

NOT_LISTED = "gpulab has no virtual GPU for the one of this machine"


def listed_gpu() -> str | None:
    """The name of the first GPU in gpulab's table; None if it is not listed."""
    gpus = describe_machine().gpus
    spec = spec_of(gpus[0]) if gpus else None
    return spec.name if spec else None
