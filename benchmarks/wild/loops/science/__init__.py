"""Loops of the family science."""
