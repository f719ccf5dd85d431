"""Workloads with a fault in memory."""
