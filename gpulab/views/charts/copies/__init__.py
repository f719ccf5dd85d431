"""Charts of copies between host and GPU."""
