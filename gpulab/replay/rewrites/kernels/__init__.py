"""Rewrites of kernels and operators: compile, precision, memory format, optimizer, batch size."""
