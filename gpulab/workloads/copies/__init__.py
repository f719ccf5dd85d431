"""Workloads with a fault in copies between host and device."""
