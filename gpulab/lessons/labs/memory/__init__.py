"""Labs about memory: activations, the caching allocator, out-of-memory errors."""
