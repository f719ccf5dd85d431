"""Rewrites of work that happens once every N steps: gradient accumulation, checkpoints."""
