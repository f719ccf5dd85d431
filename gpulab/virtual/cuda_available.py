"""Whether this machine has a CUDA GPU, and which GPU is simulated if it has none."""

from __future__ import annotations

AUTO = "auto"  # use a CUDA GPU if there is one, else simulate one
DEFAULT_GPU = "h100"  # the GPU that `auto` simulates


def has_cuda_gpu() -> bool:
    """Return whether PyTorch can use a CUDA GPU of this machine."""
    import torch

    return bool(torch.cuda.is_available())
