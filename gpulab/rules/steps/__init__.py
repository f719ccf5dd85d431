"""Rules about steps that are longer than the others."""
