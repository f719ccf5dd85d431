"""Questions to virtual GPUs: memory fit, largest batch, comparison of GPUs.

compare_gpus    the public functions, and the view of a comparison of GPUs
memory_fit      the views of a memory fit and of the largest batch
phrases         text and facts that these views share
"""
