"""Families of kernels and operators that are no matrix products: what a name says they do.

In lower case, as the names they search, which is ten times as fast as to ignore case.
"""

from __future__ import annotations

import re
from functools import cache

from gpulab.analysis.kernels.table import is_matrix

_COMPILED = re.compile(r"triton_|^fused_|inductor|cpp_fused|graph_\d+_cpp")
_OPTIMIZER = re.compile(r"multi_tensor_apply|adamfunctor|adam_|fusedadam|fused_adam|fused_sgd|lamb_|adagrad|_optimizer")
_POINTWISE = re.compile(
    r"elementwise|reduce_kernel|softmax|reduce_1block|dropout|masked_fill|layer_?norm|rms_?norm|catarraybatchedcopy"
    r"|threshold|rotary|swiglu|_act_and_mul"
)
_SOFTMAX = re.compile(r"(?<!log)(?<!log_)softmax(?!\w*log_?softmax)(?!.*logsoftmax)")
# cuDNN's and MIOpen's own conversions inside convolutions, and PyTorch's where a layout is asked for.
_LAYOUT = re.compile(r"nchwtonhwc|nhwctonchw|batched_transpose_\d|transpose_nchw|nchw2nhwc|nhwc2nchw|nchw_to_nhwc")
_SCATTERED = re.compile(
    r"index_elementwise|indexselect|index_select|index_put|indexfunc|indexadd|gather|scatter|embedding"
    r"|vectorized_gather|take_kernel|masked_scatter|indexing_backward"
)


@cache
def is_compiled(name: str) -> bool:
    """Made by a compiler (Triton, Inductor): already fused."""
    return bool(_COMPILED.search(name.lower()))


@cache
def is_optimizer(name: str) -> bool:
    """An optimizer's kernel that updates many tensors at once."""
    return bool(_OPTIMIZER.search(name.lower()))


@cache
def is_pointwise(name: str) -> bool:
    """Reads its tensors once, computes a little on each element, writes: what a compiler could fuse with another."""
    lower = name.lower()
    if _COMPILED.search(lower) or _OPTIMIZER.search(lower) or _LAYOUT.search(lower) or _SCATTERED.search(lower):
        return False
    return bool(_POINTWISE.search(lower))


@cache
def is_softmax(name: str) -> bool:
    """A softmax over one dimension; not that of a loss, which is a log_softmax."""
    return is_pointwise(name) and bool(_SOFTMAX.search(name.lower()))


@cache
def is_layout(name: str) -> bool:
    """Rearranges a batch of images from one order of its dimensions to the other."""
    return bool(_LAYOUT.search(name.lower()))


@cache
def is_scattered(name: str) -> bool:
    """Reads or writes places that an index tells: rows of a table, picked elements."""
    lower = name.lower()
    return bool(_SCATTERED.search(lower)) and not is_matrix(lower) and not _COMPILED.search(lower)
