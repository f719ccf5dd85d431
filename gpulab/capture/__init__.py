"""Recording: torch.profiler, sensors and step marks around a cell or a block produce a Run."""
