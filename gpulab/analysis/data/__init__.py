"""Data loading: cost of batches, DataLoader workers, prefetched batches."""
