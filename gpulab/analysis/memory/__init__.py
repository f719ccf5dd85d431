"""Memory: allocator, growth, lifetimes, who held it when it ran out."""
