"""Primitives over the events table: device work, busy time, nested calls, groups, trends."""
