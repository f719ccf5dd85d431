"""Lessons on kernels: how they work, how large and how many they are, and in which precision."""
