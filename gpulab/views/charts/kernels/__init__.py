"""Charts of kernels: time by kernel, roofline, throughput by batch size."""
