"""Matrix products, and operators that are computed as matrix products.

gemm            matrix products and decompositions
gemm_names      kernel names of cuBLAS and CUTLASS
convolutions    convolutions, forward and backward
attention       fused attention
rnn             recurrent layers and cells
"""
