"""Loops of the family medical."""
