"""Charts of the host: idle time by line, queue depth."""
