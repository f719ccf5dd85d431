"""Charts of the machine: sensors, GPUs compared."""
