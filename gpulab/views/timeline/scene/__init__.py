"""The scene of a timeline: rows of boxes, curves, names and colours, computed from a run."""
