"""Callbacks that record a training in its framework: Lightning, Transformers, Accelerate.

Each module imports its framework: import the one that you use.
"""
