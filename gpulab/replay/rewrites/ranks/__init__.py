"""Rewrites of communication between ranks."""
