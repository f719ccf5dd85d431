"""Lessons on copies between host and GPU."""
