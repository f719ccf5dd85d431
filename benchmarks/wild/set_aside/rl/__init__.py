"""Loops of the family rl."""
