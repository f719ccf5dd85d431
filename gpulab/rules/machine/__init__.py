"""Rules about the machine: clocks, sharing, the link, the device that computes."""
