"""Primitives over the events table: device work, busy time, nesting of calls, grouping, trends."""
