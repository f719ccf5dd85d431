"""Families of kernels and operators other than matrix products, by name.

Patterns are in lower case and applied to lower-case names, which is ten times as fast as ignoring case.
"""

from __future__ import annotations

import re
from functools import cache

from gpulab.analysis.kernels.kernel_table import is_matrix

_COMPILED = re.compile(r"triton_|^fused_|inductor|cpp_fused|graph_\d+_cpp")
_OPTIMIZER = re.compile(r"multi_tensor_apply|adamfunctor|adam_|fusedadam|fused_adam|fused_sgd|lamb_|adagrad|_optimizer")
_POINTWISE = re.compile(
    r"elementwise|reduce_kernel|softmax|reduce_1block|dropout|masked_fill|layer_?norm|rms_?norm|catarraybatchedcopy"
    r"|threshold|rotary|swiglu|_act_and_mul"
)
_SOFTMAX = re.compile(r"(?<!log)(?<!log_)softmax(?!\w*log_?softmax)(?!.*logsoftmax)")
# Layout conversions of cuDNN and MIOpen inside convolutions, and those of PyTorch for a requested memory format.
_LAYOUT = re.compile(r"nchwtonhwc|nhwctonchw|batched_transpose_\d|transpose_nchw|nchw2nhwc|nhwc2nchw|nchw_to_nhwc")
_SCATTERED = re.compile(
    r"index_elementwise|indexselect|index_select|index_put|indexfunc|indexadd|gather|scatter|embedding"
    r"|vectorized_gather|take_kernel|masked_scatter|indexing_backward"
)


@cache
def is_compiled(name: str) -> bool:
    """Whether a compiler (Triton, Inductor) generated the kernel: it is already fused."""
    return bool(_COMPILED.search(name.lower()))


@cache
def is_optimizer_kernel(name: str) -> bool:
    """Whether it is an optimizer kernel that updates many tensors at once."""
    return bool(_OPTIMIZER.search(name.lower()))


@cache
def is_elementwise(name: str) -> bool:
    """Whether it reads each element once, computes little and writes it: a compiler can fuse such kernels."""
    lower = name.lower()
    if _COMPILED.search(lower) or _OPTIMIZER.search(lower) or _LAYOUT.search(lower) or _SCATTERED.search(lower):
        return False
    return bool(_POINTWISE.search(lower))


@cache
def is_softmax(name: str) -> bool:
    """Whether it is a softmax, without the log_softmax of a loss."""
    return is_elementwise(name) and bool(_SOFTMAX.search(name.lower()))


@cache
def is_layout_conversion(name: str) -> bool:
    """Whether it converts between NCHW and NHWC."""
    return bool(_LAYOUT.search(name.lower()))


@cache
def is_gather_scatter(name: str) -> bool:
    """Whether it is a gather or scatter kernel: it reads or writes elements given by an index."""
    lower = name.lower()
    return bool(_SCATTERED.search(lower)) and not is_matrix(lower) and not _COMPILED.search(lower)
