"""The scene of a timeline: rows, curves, names, colours."""
