"""Loops of the family tabular."""
