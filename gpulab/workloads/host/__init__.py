"""Workloads with a fault on the host."""
