"""Copies between host and device: sizes, rates, pageable or pinned, hidden or exposed."""
