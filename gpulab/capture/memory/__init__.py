"""Memory while a session records: the allocator, growing collections, who holds memory when it runs out."""
