"""CUDA kernels written in Python, and run by a simulator: what their threads read, write and execute is counted.

simulator      the names of numba.cuda: jit, grid, threadIdx, shared, const, syncthreads
device_arrays  arrays that record each access
launch_record  the record of a launch: requests of warps, sectors, bank conflicts, idle lanes
occupancy      warps on a multiprocessor, by the limits of each compute capability
latency        how many bytes must be in flight to fill the bandwidth
random_reads   the time of a random read on this CPU, by the size of the data
"""
