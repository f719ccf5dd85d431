"""Loops of the family images."""
