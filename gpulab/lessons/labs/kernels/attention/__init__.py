"""Attention: which kernel runs, what it saves, and a small decoder that generates with and without a cache.

backends  whether PyTorch's flash kernel takes a call, and its reasons if not
decoder   a small transformer whose attention is a function of the notebook
saved     the tensors that a forward pass saves for the backward pass, by shape
"""
