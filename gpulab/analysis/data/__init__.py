"""Data loading: cost of a batch, DataLoader workers, prefetch bias."""
