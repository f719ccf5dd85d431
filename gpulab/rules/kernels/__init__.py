"""Rules about kernels and operators: fusion, precision, shapes, layout, batch size, the optimizer."""
