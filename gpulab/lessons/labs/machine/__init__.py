"""Labs about the machine: utilisation, sensors, topology."""
