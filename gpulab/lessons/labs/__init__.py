"""Code that the notebooks import: data sets, counters and small models.

machine    utilisation, monitor readings, throttling, topology
data       data loading: workers, caches, file formats, padding
host       operators and kernel launches
copies     copies between host and device
kernels    batch size, fusion, mixed precision
memory     activations, the caching allocator, out-of-memory errors
steps      throughput, a checklist, a sequence of optimisations
drills     the twelve anonymous runs of lesson 20
tables     tables for notebook cells

This code is not in the notebooks because DataLoader workers are separate processes, which on macOS and Windows, and on
Linux from Python 3.14 on, must be able to import what they run.
"""
