"""Lessons on the GPU as a monitor, a scheduler and a bill see it."""
