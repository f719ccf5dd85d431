"""Workloads with a fault in kernels and operators."""
