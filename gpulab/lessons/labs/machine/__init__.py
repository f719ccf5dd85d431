"""Labs about the machine: utilisation, monitor readings, throttling, topology."""
