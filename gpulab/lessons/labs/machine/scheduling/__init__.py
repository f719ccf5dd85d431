"""What lesson 16 schedules: requests for resources, a queue, shared GPUs, MIG profiles, allocations, idle processes."""
