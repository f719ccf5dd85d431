"""Loops of the family video."""
