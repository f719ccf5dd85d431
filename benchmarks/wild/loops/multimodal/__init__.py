"""Loops of the family multimodal."""
