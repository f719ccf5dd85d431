"""Loops of the family audio."""
