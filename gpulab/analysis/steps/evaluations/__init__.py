"""Evaluations that no DataLoader shows."""
