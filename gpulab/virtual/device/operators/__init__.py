"""Operators on the virtual GPU that PyTorch would run differently without CUDA."""
