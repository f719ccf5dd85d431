"""Charts of data loading: DataLoader workers and batches."""
