"""torch.cuda and the other parts of torch that are patched while a virtual GPU is active.

The modules:

    patches           set attributes and register kernels, and restore them
    cuda_api          torch.cuda: device properties, synchronisation, random state, NVTX
    cuda_memory       torch.cuda's memory functions
    streams           streams and events on virtual time
    tensor_methods    methods of tensors that name devices or read values
    modules           nn.Module.to keeps the parameter objects
    internals         internals of torch that fake CUDA tensors need changed
    function_mode     the boundary between the program and PyTorch
    threads           threads and DataLoader workers that the program starts
    per_thread        attributes with one value per thread
    distributed       process groups of one rank, DistributedDataParallel
    flex_attention    FlexAttention as one fused kernel
    save_and_load     torch.save and torch.load
    unsupported       features that raise an error or are ignored with an assumption
"""
