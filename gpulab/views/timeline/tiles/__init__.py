"""The tiles of a timeline: cutting, encoding, and the selection that is stored in an HTML file."""
