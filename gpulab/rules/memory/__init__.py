"""Rules about GPU memory: out of memory, the caching allocator, fragmentation, leaks, unused memory."""
