"""The CUDA device that programs see on a machine without a GPU.

The modules and packages:

    device            FakeDevice: unmodified CUDA code runs on fake tensors
    counting          CountingDevice: the fallback on PyTorch's meta device
    stand_in          what both devices share
    recorder          writes operators, copies and waits to the op log
    training_phase    forward, backward, optimizer; what memory is for
    tensors           fake tensors, their memory, copies and assumed values
    endless_loops     loops that wait for an assumed value, stopped with their line
    operators         operators that PyTorch runs differently without CUDA: autocast, attention, cuDNN
    torch_api         torch.cuda and the other patched parts of torch
"""
