"""The CUDA device that programs see: fake tensors, torch.cuda, autocast, and the recorder that writes the tape."""
