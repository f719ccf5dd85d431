"""Copies between host and device: sizes, rates, pageable or pinned, overlapped or exposed."""
