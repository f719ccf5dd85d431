"""Workloads with a fault in some steps only."""
