"""Several GPUs: collectives, stragglers, DataParallel."""
