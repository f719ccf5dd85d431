"""Rules about several GPUs: communication, stragglers, DataParallel, idle GPUs."""
