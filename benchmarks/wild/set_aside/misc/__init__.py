"""Loops of the family misc."""
