"""Records of what a program does on a virtual GPU, in program order: operators, copies, waits, batches, step ends.

The fake device writes these records while the program runs. The clock adds the times, the allocator the memory.
This module does not use torch: dtypes are names ("float32"), tensors are their sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

Sizes = tuple[int, ...]


class Phase(Enum):
    """Part of a training step."""

    SETUP = "setup"  # before the first step: the model moves to the GPU
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Sizes, dtype and layout of one argument or result on the GPU."""

    sizes: Sizes
    dtype: str  # as torch names it, without "torch.": "bfloat16"
    bytes: int  # of its elements: what a kernel reads or writes
    contiguous: bool = True
    channels_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator on the GPU; an operator that only makes a view (`view`) launches no kernel."""

    name: str  # "aten::addmm", without the overload
    inputs: tuple[TensorInfo, ...]  # tensors on the GPU in order, including those in lists
    outputs: tuple[TensorInfo, ...]
    flops: int = 0  # counted by torch.utils.flop_counter; 0 if it does not know the operator
    is_view: bool = False
    tf32: bool = False  # TF32 was allowed for this operator when it ran
    list_length: int = 0  # length of the longest tensor list of a _foreach or fused operator; else 0
    details: tuple[tuple[str, str], ...] = ()  # other inputs of the cost model: ("causal", "True"), ("groups", "32")
    phase: Phase = Phase.FORWARD
    stream: int = 7  # the default stream is 7, as in traces
    python_ns: int = 0  # measured: Python time of the program since the previous record


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOp:
    """An operator on CPU tensors: it ran for real, and its time was measured."""

    name: str
    inputs: tuple[TensorInfo, ...]
    elapsed_ns: int
    phase: Phase = Phase.FORWARD
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spin:
    """torch.cuda._sleep: a kernel that idles for a number of SM clock cycles."""

    cycles: int
    phase: Phase = Phase.FORWARD
    stream: int = 7
    python_ns: int = 0


class CopyDirection(Enum):
    """Direction of a copy."""

    HOST_TO_DEVICE = "HtoD"
    DEVICE_TO_HOST = "DtoH"
    DEVICE_TO_DEVICE = "DtoD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy between host and GPU (a copy within the GPU is an Op, "aten::copy_")."""

    name: str  # the operator that copies: "aten::copy_", "aten::_local_scalar_dense"
    direction: CopyDirection
    bytes: int
    pinned: bool
    non_blocking: bool  # the argument; a copy from pageable memory blocks the host all the same
    phase: Phase = Phase.FORWARD
    stream: int = 7
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWait:
    """The host waits for the whole GPU, a stream or an event."""

    call: str  # name of the runtime call: "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"
    stream: int | None = None  # the stream to wait for; None: all streams
    event: int | None = None  # the event to wait for
    phase: Phase = Phase.FORWARD
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """An event is recorded in a stream; it completes when all earlier work in the stream is done."""

    event: int
    stream: int
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWait:
    """Later work in a stream waits for an event."""

    event: int
    stream: int
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A named range begins (`open`) or ends: record_function, Optimizer.step, an autograd node."""

    name: str
    is_start: bool
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFetch:
    """The program fetched a batch from a DataLoader. Times are measured on this machine."""

    loader: int  # index of the DataLoader, in order of first use
    epoch: int
    yielded: bool  # False: the epoch had ended
    build_ns: int  # time to build the batch, in the main process or in the worker; 0 if none was built
    build_cpu_ns: int  # CPU time of that
    bytes: int  # of the batch's tensors; -1 where unknown
    epoch_start_ns: int = 0  # part of built_ns that started the epoch: starting workers, opening the dataset
    python_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnd:
    """A step ended: an optimizer stepped, or the program called gpulab.step() (`said`)."""

    by_user: bool = False
    python_ns: int = 0


Record = Op | HostOp | Spin | Copy | HostWait | EventRecord | StreamWait | Range | BatchFetch | StepEnd
RecordSink = Callable[[Record], None]


# Names of facts of a virtual run: its assumptions, and P10 and P90 of the step time in ns.
ASSUMED_PREFIX = "assumed: "  # followed by Assumption.what
STEP_LOW_FACT, STEP_HIGH_FACT = "step_low_ns", "step_high_ns"


class Role(Enum):
    """Purpose of an allocation."""

    PARAMETER = "parameters"  # and buffers
    GRADIENT = "gradients"
    OPTIMIZER = "optimizer"  # optimizer state
    ACTIVATION = "activations"  # allocated in forward and saved for backward
    TEMPORARY = "temporaries"  # freed before the phase ends, and everything else


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value that the program needs and the virtual GPU cannot know, and the value assumed for it."""

    subject: str  # "values read with .item()"
    value: str  # "1.0"
    count: int = 1
