"""Rules about data loading: number of workers, storage, CPU cost of samples, and the cause of late batches."""
