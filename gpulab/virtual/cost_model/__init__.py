"""What work takes on a GPU: the kernels of every operator, each with its time, and how far that may be off."""
