"""torch.cuda and the parts of torch that are patched while a virtual GPU is on."""
