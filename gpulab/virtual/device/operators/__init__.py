"""Operators that PyTorch runs differently without CUDA, and what the op log needs to know of operators.

The modules:

    single_kernel          operators that PyTorch runs as one kernel on CUDA tensors
    attention              which kernel scaled_dot_product_attention selects
    cudnn_rnn, rnn_cells   LSTM, GRU and RNN layers and cells
    rms_norm               fused RMS normalisation
    grouped_mm             products of the experts of a mixture
    autocast               the autocast lists of PyTorch
    data_dependent         operators whose result size depends on values
    missing_shape_rules    operators without a shape rule in PyTorch
    run_on_zeros           shapes of other operators, found by running them on zeros
    schema                 properties of an operator from its name and schema
    naming                 names in traces, and arguments that the cost model needs
"""
