"""Loops of the family graph."""
