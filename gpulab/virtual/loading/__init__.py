"""DataLoaders under a virtual GPU: they run for real; batch times are measured, arrivals simulated.

hooks           hooks on torch's DataLoader that log every batch
iterators       state of one DataLoader iterator
build_time      time to build a batch, measured in the process that builds it
sample_batch    time to build a batch in the main process, if the workers cannot measure it
batch_size      tensors in a batch, and their bytes
arrivals        arrival times of batches on virtual time
"""
