"""Loops of the family text."""
