"""Rewrites of data loading: number of workers, cost of an item, no loading time."""
