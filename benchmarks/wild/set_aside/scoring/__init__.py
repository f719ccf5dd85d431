"""Loops of the family scoring."""
