"""Workloads with a fault in data loading."""
