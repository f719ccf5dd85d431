"""What the host of a virtual GPU costs, calibrated on this CPU."""
