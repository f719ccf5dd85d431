"""Callbacks for frameworks (Lightning, Transformers, Accelerate), and exporters to trackers and monitoring.

Each module imports its framework: import the one that you use.
"""
