"""Cost model: the kernels that an operator launches on a GPU, and the time of each.

operators     kernels of an operator, and the uncertainty of each class
op_classes    class of an operator by its name; operators that launch no kernel
kernel        a kernel and the classes of operators
tensors       types and sizes of an operator's tensors
rates         shares of a GPU's peaks that kernels reach
primitives    a pass over memory, and a matrix product in tiles: the basis of all other costs
elementwise   elementwise operators, copies, reductions, pooling
norms         softmax, losses, normalisation
indexing      gather, scatter, sort
foreach       operators on lists of tensors, fused optimizers
matrix        matrix products, convolutions, attention, recurrent layers
copies        copies between host and GPU
spin          torch.cuda._sleep
uncertainty   range of a step time
"""
