"""What the host can be asked: CPU time, threads, workers, storage, cgroup limits, the current line of code."""
