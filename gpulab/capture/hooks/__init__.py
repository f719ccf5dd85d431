"""Hooks in the running program: loaders, optimizers, garbage collection, and the names of its variables."""
