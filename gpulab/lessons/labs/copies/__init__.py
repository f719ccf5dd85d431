"""Labs about copies between host and device."""
