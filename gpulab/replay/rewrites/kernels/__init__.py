"""Rewrites of kernels and operators: compile, precision, layout, optimizer, batch size."""
