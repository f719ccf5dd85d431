"""Rules about the machine: clocks, other processes, PCIe link, GPUs that are held idle, models on the CPU."""
