"""The same samples in several storage formats, read through a store that counts what each format asks of it.

counted_store    files behind a counter of opens, reads and bytes, with the latency and bandwidth of a remote store
record_files     TFRecord framing: length, masked CRC-32C, payload
sample_formats   files, a memory map, tar shards, TFRecord shards and Parquet: written, read and timed
sorted_rows      samples sorted by label, and a small network that shows what the order of training does
stream_order     how well a stream is mixed: label runs, labels in a batch, correlation with the stored order
shard_epochs     the exercise: an epoch from a remote store, its requests counted and its order checked
"""
