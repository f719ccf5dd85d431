"""Rewrites of copies between host and device."""
