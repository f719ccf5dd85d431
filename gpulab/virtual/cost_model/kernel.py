"""A kernel that an operator launches, and the classes of work that are priced, and doubted, alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class OpClass(Enum):
    """Work whose price is known equally well: a draw of the uncertainty moves all of a class together."""

    PRODUCT = "matrix products"  # float32 on the ordinary units
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
    SCATTERED = "indexing, gathering and sorting"
    OPTIMIZER = "optimizer"
    SPIN = "spinning (torch.cuda._sleep)"
    OTHER = "everything else"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, or a copy or fill within the GPU, whose name then begins with "Memcpy" or "Memset"."""

    name: str
    ns: float
    grid: int  # thread blocks; -1 for copies and fills
    block: int  # threads of one
    registers: int  # of one thread
    shared_bytes: int  # of one block
    of: OpClass
