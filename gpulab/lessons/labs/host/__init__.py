"""Labs about operators and kernel launches."""
