"""Lessons on loading and preparing data."""
