"""State of a session in progress: snapshots for the live panel, and monitoring across cells."""
