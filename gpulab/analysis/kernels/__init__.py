"""Kernels: families, precision, fusion, occupancy, arithmetic and traffic, the optimizer."""
