"""Rewrites of the machine: another GPU, an instant GPU, an instant host."""
