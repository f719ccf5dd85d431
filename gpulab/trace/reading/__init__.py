"""From the text of a trace to batches of events: blocks, chunks, JSON, repair of damaged text."""
