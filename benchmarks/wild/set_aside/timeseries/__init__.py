"""Loops of the family timeseries."""
