"""Charts of memory."""
