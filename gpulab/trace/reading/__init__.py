"""From the text of a trace to batches of events: blocks, pieces, JSON, repair of damaged text."""
