"""Whether a GPU has to be played, or one is here."""

from __future__ import annotations

AUTO = "auto"  # asks for a GPU to be played where there is none
USUAL = "h100"  # the one that is played then


def cuda_here() -> bool:
    """Whether PyTorch can use a CUDA GPU of this machine."""
    import torch

    return bool(torch.cuda.is_available())
