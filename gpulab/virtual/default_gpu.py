"""Which GPU is simulated if this machine has none."""

from __future__ import annotations

AUTO = "auto"  # use a CUDA GPU if there is one, else simulate one
DEFAULT_GPU = "h100"  # the GPU that `auto` simulates
