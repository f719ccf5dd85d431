"""Sensors of the host: CPU time, threads, workers, storage, cgroup limits, the line of code being executed."""
