"""Labs about kernels: fusion, precision, batch size."""
