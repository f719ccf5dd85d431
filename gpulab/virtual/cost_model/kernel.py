"""A kernel with its time, and the classes of operators that share a cost model and an uncertainty."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OpClass(Enum):
    """Operators whose cost is equally uncertain; the errors of one class are fully correlated."""

    PRODUCT = "matrix products"  # float32, without tensor cores
    TENSOR_PRODUCT = "matrix products on tensor cores"
    BATCHED = "batched matrix products"
    CONVOLUTION = "convolutions"
    ATTENTION = "fused attention"
    RECURRENT = "recurrent layers"
    ELEMENTWISE = "elementwise"
    COPY = "copies and layouts"
    NORM = "normalisation"
    SOFTMAX = "softmax and losses"
    REDUCTION = "reductions"
    POOL = "pooling and resampling"
    INDEXING = "indexing, gathering and sorting"
    OPTIMIZER = "optimizer"
    PAGEABLE_TO_DEVICE = "copies from pageable memory"
    PAGEABLE_TO_HOST = "copies to pageable memory"
    SPIN = "spinning (torch.cuda._sleep)"
    OTHER = "everything else"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, or a copy or fill on the GPU, whose name begins with "Memcpy" or "Memset"."""

    name: str
    ns: float
    grid: int  # thread blocks; -1 for copies and fills
    block: int  # threads per block
    registers: int  # per thread
    shared_bytes: int  # shared memory per block
    op_class: OpClass
