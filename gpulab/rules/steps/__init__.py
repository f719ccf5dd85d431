"""Rules about steps that take longer than their neighbours."""
