"""Loops of the family decoding."""
