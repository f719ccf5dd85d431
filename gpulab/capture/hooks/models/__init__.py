"""What is recorded of the models in a loop: frozen ones, the memory format of images, and the code they call."""
