"""NVIDIA GPUs, through nvidia-ml-py."""
