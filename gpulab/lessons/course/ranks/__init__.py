"""Lessons on several GPUs."""
