"""Loops of the family signals."""
