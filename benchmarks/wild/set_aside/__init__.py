"""Loops that no rule or prediction was changed for: see benchmarks.wild.registry."""
