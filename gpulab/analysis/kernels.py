"""What a kernel's name says about it."""

from __future__ import annotations

import re
from functools import cache

# Families by name, from the traces of V100, A100, H100, B200, MI210-MI300 and cuBLAS, cuDNN and CUTLASS's own rules.
_MATRIX = re.compile(
    r"gemm|gemv|gemmk|nvjet|wgmma|tensorop|_mma_|xmma|hmma|imma|s\d+(?:gemm|cudnn)|884|1688|16816|16832"
    r"|conv|cudnn.*(?:fprop|dgrad|wgrad)|fprop|dgrad|wgrad|winograd|implicit_|scudnn|cutlass|bmm_|_mm_|matmul"
    r"|fmha|flash_(?:fwd|bwd)|mha_(?:fwd|bwd)|attention_kernel|Cijk_|MIOpenConv|igemm|naive_conv|ck_tile.*gemm",
    re.IGNORECASE,
)
_NOT_MATRIX = re.compile(r"nchwToNhwc|nhwcToNchw|elementwise|reduce_kernel|Memcpy|Memset|convert|splitKreduce", re.I)


@cache
def is_matrix(name: str) -> bool:
    """Whether a kernel of this name multiplies matrices: GEMM, convolution, fused attention."""
    return bool(_MATRIX.search(name)) and not _NOT_MATRIX.search(name)
