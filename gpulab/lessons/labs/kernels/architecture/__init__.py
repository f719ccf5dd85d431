"""Architectures and their search: what a design costs, and small real trainings to choose one by.

network_costs   parameters, arithmetic and saved bytes of a network, counted on the meta device
residual_nets   a teacher and a student of residual layers, for distillation
candidates      the networks of a search: error by training, latency and memory on a GPU
pareto          which results dominate others, and a plot of the front
halving         a grid of trainings, and asynchronous successive halving (ASHA)
optimizers      optimizers with their best learning rates, states and operators
frameworks      a CNN and an LSTM as plain array code, which NumPy and JAX run, and in PyTorch
"""
