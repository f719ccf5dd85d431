"""Facts about GPUs, each written once: peaks, memory, caches, links, clocks, power, and what kernels reach of them.

    gpu_spec       the data sheet of one GPU: GpuSpec, and the shares of its peaks that kernels reach
    gpus           SPECS, the table of GPUs; adding a GPU is one entry there
    lookup         resolve("a100-80") for names that people type; spec_of(gpu) for the GPU of a recorded run
    architectures  facts about every GPU of one compute capability, listed or not
    precision      peaks and speed-ups by numeric precision
    pcie           rates of the link to the host
    vendor         NVIDIA or AMD, by name

All listed GPUs are NVIDIA's: of AMD's only the names are known here, so their peaks are absent, not zero.
"""
