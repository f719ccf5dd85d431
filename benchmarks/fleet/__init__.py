"""Benchmark of gpulab.fleet: a job of many ranks, made of one real trace, and the same figures by other means."""
