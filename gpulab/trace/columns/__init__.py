"""Convert batches of events to the columns of the tables."""
