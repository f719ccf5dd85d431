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
    true_values       values of small integer and boolean tensors that follow from the program
    order_dependence  operators whose result a GPU may order in its own way
    assumed_values    values that programs read from the GPU: true, or assumed
    error_messages    errors worded as PyTorch words them
"""
