"""Loops of the family frameworks."""
