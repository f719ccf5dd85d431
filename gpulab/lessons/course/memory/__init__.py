"""Lessons on what fills the memory, and what saves it."""
