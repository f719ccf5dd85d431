"""Rules about kernels and operators: fusion, precision, shapes, occupancy, the optimizer."""
