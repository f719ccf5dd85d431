"""Answers about virtual GPUs: memory fit, largest batch, comparison of GPUs."""
