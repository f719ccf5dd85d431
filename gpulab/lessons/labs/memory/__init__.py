"""Labs about memory."""
