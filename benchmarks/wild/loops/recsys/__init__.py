"""Loops of the family recsys."""
