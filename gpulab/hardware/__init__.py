"""Facts about GPUs: peaks, memory, caches, links, clocks, power, and the shares of peaks that kernels reach.

    gpu_spec       the data sheet of one GPU: GpuSpec, and the shares of its peaks that kernels reach
    gpus           SPECS, the table of GPUs; adding a GPU is one entry there
    lookup         resolve("a100-80") for typed names; spec_of(gpu) for the GPU of a recorded run
    architectures  facts about every GPU of one compute capability, listed or not
    precision      peaks and speed-ups by numeric precision
    pcie           rates of the link to the host
    vendor         NVIDIA or AMD, by name

All listed GPUs are made by NVIDIA. Of AMD GPUs only the names are known, so their peaks are absent, not zero.
"""
