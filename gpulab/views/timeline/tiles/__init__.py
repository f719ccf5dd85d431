"""The tiles of a timeline: cutting, encoding, and what fits into a file."""
