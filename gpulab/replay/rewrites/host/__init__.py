"""Rewrites of the host: Python code, garbage collection, synchronisation, CUDA graphs."""
