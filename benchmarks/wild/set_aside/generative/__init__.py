"""Loops of the family generative."""
