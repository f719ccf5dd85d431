"""Predictions and critical paths."""
