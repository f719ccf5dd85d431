"""Memory on a virtual GPU: what uses it, whether a step fits, and the largest batch.

allocator         PyTorch's caching allocator, simulated
memory            memory in use, by role and phase, and its peak
request_script    allocations of a program, and a prediction of them for other batch sizes
measuring         estimate of one step: time, memory, bottleneck
batch_search      search for the largest batch that fits
fitting           fits, max_batch and compare_gpus
cpu_share         what a step takes from this machine's CPU and memory
"""
