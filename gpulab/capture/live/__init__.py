"""What a session in progress can tell: a snapshot for the live panel, and monitoring across cells."""
