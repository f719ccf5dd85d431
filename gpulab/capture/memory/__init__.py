"""Memory while a session records: allocator statistics, growing collections, memory holders at out-of-memory."""
