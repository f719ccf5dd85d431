"""Memory: caching allocator, growth, lifetimes, holders of memory after an out-of-memory error."""
