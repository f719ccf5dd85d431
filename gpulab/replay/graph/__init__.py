"""The graph that a replay times: host calls, device work, and the dependencies between them."""
