"""Loops of the family vision."""
