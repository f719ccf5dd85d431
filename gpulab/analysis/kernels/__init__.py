"""Kernels: families, precision, fusion, occupancy, roofline, FLOPs and bytes moved, the optimizer."""
