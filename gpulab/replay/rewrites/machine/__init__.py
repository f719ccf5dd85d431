"""Rewrites of the machine: another GPU, or a host or GPU that takes no time."""
