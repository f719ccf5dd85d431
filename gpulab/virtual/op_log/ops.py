"""What a program did with a GPU that is not there, in order: the words between the fake device and its prices.

The fake device writes these records as the program runs. The clock gives each its time, the allocator its memory.
Nothing here knows torch: types are names ("float32"), tensors are their sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

Sizes = tuple[int, ...]


class Phase(Enum):
    """Which part of a step it belongs to."""

    SETUP = "setup"  # before the first step: the model, and what it needs, goes to the GPU
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Tensor:
    """Sizes, type and layout of one argument or result on the GPU."""

    sizes: Sizes
    dtype: str  # as torch names it, without "torch.": "bfloat16"
    bytes: int  # of its elements: what must be read or written of it
    contiguous: bool = True
    channels_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator that ran on the GPU, or that only made a view (`view`), for which nothing is launched."""

    name: str  # "aten::addmm", without its overload
    inputs: tuple[Tensor, ...]  # tensors on the GPU, those in lists too, in order
    outputs: tuple[Tensor, ...]
    flops: int = 0  # as torch.utils.flop_counter counts them; 0 for what it does not count
    view: bool = False
    tf32: bool = False  # float32 products may be rounded to TF32 in this operator, as set when it ran
    lists: int = 0  # of a _foreach or fused operator: how many tensors the longest of its lists has; else 0
    details: tuple[tuple[str, str], ...] = ()  # what else its price may need: ("causal", "True"), ("groups", "32")
    phase: Phase = Phase.FORWARD
    stream: int = 7  # the default stream is 7, as in traces
    python_ns: int = 0  # measured: the program's own Python since the record before


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp:
    """An operator on tensors of the host's: it ran for real, and its time was measured."""

    name: str
    inputs: tuple[Tensor, ...]
    ns: int
    phase: Phase = Phase.FORWARD
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spin:
    """A kernel that does nothing for so many cycles of the multiprocessors' clock: torch.cuda._sleep."""

    cycles: int
    phase: Phase = Phase.FORWARD
    stream: int = 7
    python_ns: int = 0


class Way(Enum):
    """From where to where a copy goes."""

    TO_DEVICE = "HtoD"
    TO_HOST = "DtoH"
    WITHIN = "DtoD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy between host and GPU (a copy within the GPU is an Op, "aten::copy_")."""

    name: str  # the operator that asked for it: "aten::copy_", "aten::_local_scalar_dense"
    way: Way
    bytes: int
    pinned: bool
    non_blocking: bool  # as asked for; from pageable memory the host waits all the same
    phase: Phase = Phase.FORWARD
    stream: int = 7
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The host waits for the GPU: all of it, a stream, or an event."""

    call: str  # the runtime's name: "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"
    stream: int | None = None  # the stream waited for; None: all
    event: int | None = None  # the event waited for
    phase: Phase = Phase.FORWARD
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """An event is recorded in a stream: done when all work before it is."""

    event: int
    stream: int
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What is called for in a stream from now on waits for an event."""

    event: int
    stream: int
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A named stretch of the program begins (`open`) or ends: record_function, Optimizer.step, an autograd node."""

    name: str
    open: bool
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A batch was asked of a DataLoader. Times are real, measured on this machine."""

    loader: int  # which DataLoader, counted as first seen
    epoch: int
    yielded: bool  # False: the pass had ended
    built_ns: int  # what building took, in the main process or in the worker; 0 where nothing was built
    built_cpu_ns: int  # of which on a core
    bytes: int  # of the batch's tensors; -1 where unknown
    starting_ns: int = 0  # of built_ns, what beginning the pass took: starting workers, opening the dataset
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """A step ended: an optimizer stepped, or the program said so (`said`)."""

    said: bool = False
    python_ns: int = 0


Record = Op | HostOp | Spin | Copy | Wait | Signal | Hold | Range | Fetch | Stepped
Sink = Callable[[Record], None]


# The names of facts that a virtual run tells of itself: what was assumed, and between what a step lies, in ns.
ASSUMED = "assumed: "  # and then what
STEP_LOW, STEP_HIGH = "step_low_ns", "step_high_ns"


class Role(Enum):
    """What a piece of memory is for."""

    PARAMETER = "parameters"  # and buffers
    GRADIENT = "gradients"
    OPTIMIZER = "optimizer"  # its state
    ACTIVATION = "activations"  # made in forward, and kept for backward
    TEMPORARY = "temporaries"  # gone before the phase ends, and what is none of these


@dataclass(frozen=True, slots=True)
class Assumption:
    """Something the program's way depends on and a GPU without numbers cannot tell, and what was taken for it."""

    what: str  # "values read with .item()"
    taken: str  # "1.0"
    times: int = 1
