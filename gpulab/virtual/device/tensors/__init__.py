"""Tensors of the virtual GPU.

The modules:

    fake_tensors      tensors on cuda:0 without values, and the dispatch mode that runs operators on them
    meta_tensors      the same for the fallback on PyTorch's meta device
    op_cache          remembered results of operators, by the sizes of their arguments
    storages          the simulated memory behind each tensor
    copies            copies between host and GPU
    pinned            which CPU tensors are pinned
    layouts           channels-last results of convolutions
    tensor_info       sizes, dtype, bytes and layout of a tensor, for the op log
    assumed_values    values that programs read from the GPU
    error_messages    errors worded as PyTorch words them
"""
