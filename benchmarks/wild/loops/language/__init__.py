"""Loops of the family language."""
