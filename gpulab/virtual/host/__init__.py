"""CPU costs of a virtual GPU's program, calibrated on this machine.

calibration    speed of this CPU at calling PyTorch operators
costs          host cost of operators, launches and runtime calls
core_waits     time a thread waits for a CPU core
garbage        garbage collection between steps only
"""
