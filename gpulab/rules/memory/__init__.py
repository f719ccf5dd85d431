"""Rules about GPU memory."""
