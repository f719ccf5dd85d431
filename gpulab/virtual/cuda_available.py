"""Whether this machine has a CUDA GPU, and which GPU is simulated if it has none."""

from __future__ import annotations

AUTO = "auto"  # use a CUDA GPU if there is one, else simulate one
USUAL = "h100"  # the GPU that `auto` simulates


def cuda_here() -> bool:
    """Return whether PyTorch can use a CUDA GPU of this machine."""
    import torch

    return bool(torch.cuda.is_available())
