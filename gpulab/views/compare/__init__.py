"""Comparisons of two runs, and of several in a row."""
