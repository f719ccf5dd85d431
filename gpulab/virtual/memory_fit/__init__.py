"""Memory: what is in use and for what, what PyTorch would hold, whether a step fits, how large a batch may be."""
