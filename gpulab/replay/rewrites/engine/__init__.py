"""What rewrites share: device work of a graph, lower bounds, cached readings, every N-th step."""
