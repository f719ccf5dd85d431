"""Public models, trainers and features of PyTorch on the virtual GPU: which of them run, and where the others stop."""
