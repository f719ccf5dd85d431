"""Rewrites of what happens once every N steps: gradient accumulation, checkpoints."""
