"""Charts of kernels: time by kernel, roofline, batch sweep."""
