"""Whether the virtual GPU works with the installed PyTorch, tried in a subprocess."""
