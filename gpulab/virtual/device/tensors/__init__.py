"""Tensors of the virtual GPU: what they are made of, how they are copied, and what their values are assumed to be."""
