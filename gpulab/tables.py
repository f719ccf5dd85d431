"""Every column of every table: name, dtype, meaning; written once. Those of sensors: gpulab.sensor_tables."""

from __future__ import annotations

from enum import IntEnum

from gpulab.columns import Column
from gpulab.rows import Table
from gpulab.sensor_tables import GPU_SAMPLES as GPU_SAMPLES
from gpulab.sensor_tables import HOST_SAMPLES as HOST_SAMPLES
from gpulab.sensor_tables import WORKER_SAMPLES as WORKER_SAMPLES


class Kind(IntEnum):
    """What an event is, whatever dialect it was written in. Device work comes from KERNEL on."""

    OP = 0  # a PyTorch operator on the host
    ANNOTATION = 1  # record_function ranges, Optimizer.step, forward of a module
    STEP = 2  # ProfilerStep#N
    LOADER = 3  # enumerate(DataLoader)#...__next__
    PYTHON = 4  # a Python frame (with_stack)
    LAUNCH = 5  # a runtime call that starts a kernel or a graph
    SYNC = 6  # a runtime call that waits for the device
    COPY_CALL = 7  # a runtime call that copies or sets memory
    ALLOC = 8  # a runtime call that allocates or frees
    RUNTIME = 9  # any other runtime or driver call
    OVERHEAD = 10  # the profiler's own
    SYNC_RECORD = 11  # cuda_sync rows: what waited for what; not device work
    KERNEL = 12
    MEMCPY = 13
    MEMSET = 14
    COLLECTIVE = 15  # a kernel that communicates (NCCL, RCCL, ...)


DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET, Kind.COLLECTIVE)
RUNTIME_KINDS = (Kind.LAUNCH, Kind.SYNC, Kind.COPY_CALL, Kind.ALLOC, Kind.RUNTIME)


class MarkKind(IntEnum):
    """What a step mark is."""

    NEXT = 0  # one DataLoader __next__, from call to return
    OPTIMIZER = 1  # one optimizer step just ended
    USER = 2  # gpulab.step() was called


class StallKind(IntEnum):
    """What held the main thread's Python code up."""

    GC = 0  # a collection of Python's garbage
    COMPILE = 1  # torch.compile at work: a graph compiled for the first time, or again


EVENTS = Table(
    "events",
    (
        Column("kind", "int8", "what it is: a gpulab.tables.Kind", Kind),
        Column("name", "words", "operator, kernel, runtime call or annotation, as the trace names it"),
        Column("start_ns", "int64", "when it began, from the start of the run"),
        Column("dur_ns", "int64", "how long it took"),
        Column("thread", "int32", "host thread, an index into run.threads; -1 for device work"),
        Column("device", "int16", "GPU index; -1 for host events"),
        Column("stream", "int64", "stream of device work; -1 for host events or unknown"),
        Column("correlation", "int64", "joins a runtime call to the device work it started; -1 if none"),
        Column("bytes", "int64", "bytes copied or set; -1 if not told"),
    ),
)

# Side tables: what only some events have. Their `event` is a row of the events table.
_EVENT = Column("event", "int32", "which row of the events table")

GRIDS = Table(
    "grids",
    (
        _EVENT,
        Column("grid", "int64", "thread blocks of the kernel; -1 if not told"),
        Column("block", "int32", "threads per block; -1 if not told"),
        Column("registers", "int32", "registers per thread; -1 if not told"),
        Column("shared_bytes", "int64", "shared memory per block, static and dynamic; -1 if not told"),
        Column("occupancy_frac", "float32", "occupancy as Kineto estimates it, 0-1; NaN if not told"),
    ),
)

SHAPES = Table(
    "shapes",
    (
        _EVENT,
        Column("shapes", "words", "sizes of the operator's inputs, as JSON: [[64, 3, 224, 224], []]"),
        Column("dtypes", "words", 'types of the operator\'s inputs, as JSON: ["float", "Scalar"]'),
    ),
)

COLLECTIVES = Table(
    "collectives",
    (
        _EVENT,
        Column("collective", "words", "what it does, as the backend names it: allreduce, _allgather_base"),
        Column("dtype", "words", "type of the elements"),
        Column("elements_in", "int64", "elements each rank gives; -1 if not told"),
        Column("elements_out", "int64", "elements each rank gets; -1 if not told"),
        Column("group", "words", "name of the process group"),
        Column("group_size", "int32", "ranks in the group; -1 if not told"),
        Column("sequence", "int64", "which collective of its group it is: joins ranks; -1 if not told"),
    ),
)

WAITS = Table(
    "waits",
    (
        _EVENT,
        Column("wait_on_stream", "int64", "the stream that is waited for; -1 if none or not told"),
        Column("wait_on_correlation", "int64", "correlation of the call that recorded the event waited for, or -1"),
    ),
)

MEMORY = Table(
    "memory",
    (
        Column("at_ns", "int64", "when memory was given out or taken back, from the start of the run"),
        Column("thread", "int32", "host thread that asked, an index into run.threads"),
        Column("device", "int16", "GPU index; -1 for host memory"),
        Column("bytes", "int64", "how much; negative where it was taken back"),
        Column("address", "int64", "where; -1 if not told"),
        Column("allocated_bytes", "int64", "given out on this device after it; -1 if not told"),
        Column("reserved_bytes", "int64", "held by PyTorch's allocator on this device after it; -1 if not told"),
    ),
)

MARKS = Table(
    "marks",
    (
        Column("kind", "int8", "what it is: a gpulab.tables.MarkKind", MarkKind),
        Column("start_ns", "int64", "when the call began, from the start of the run"),
        Column("end_ns", "int64", "when it returned"),
        Column("loader", "int32", "index into run.loaders for NEXT; -1 otherwise"),
        Column("epoch", "int32", "which pass over that loader; -1 otherwise"),
        Column("yielded", "bool", "NEXT gave a batch (False: the pass had ended)"),
        Column("thread_cpu_ns", "int64", "CPU time the calling thread used between start and end"),
        Column("process_cpu_ns", "int64", "CPU time of the whole process so far, all threads, at start_ns"),
        Column("process_cpu_end_ns", "int64", "the same at end_ns"),
    ),
)

STALLS = Table(
    "stalls",
    (
        Column("kind", "int8", "what it is: a gpulab.tables.StallKind", StallKind),
        Column("start_ns", "int64", "when it began, from the start of the run"),
        Column("dur_ns", "int64", "how long it took"),
        Column("what", "words", "which: generation 2, or the function that was compiled"),
    ),
)

ALLOCATOR = Table(
    "allocator",
    (
        Column("at_ns", "int64", "when PyTorch's CUDA allocator was asked: where a step begins"),
        Column("device", "int16", "GPU index"),
        Column("allocated_bytes", "int64", "given out to tensors"),
        Column("reserved_bytes", "int64", "held from the driver: given out, or kept for later"),
        Column("inactive_split_bytes", "int64", "free pieces of blocks in use: what fragmentation strands"),
        Column("peak_allocated_bytes", "int64", "the most that was given out so far"),
        Column("peak_reserved_bytes", "int64", "the most that was held so far"),
        Column("retries", "int64", "times so far that the cache was emptied and the driver asked again"),
        Column("device_allocs", "int64", "times so far that the driver was asked for memory"),
        Column("out_of_memory", "int64", "times so far that memory was refused"),
    ),
)

# Where memory ran out: all who hold some. Otherwise the user's lists that grew, graph by graph: kind graph, device -1,
# bytes by which they grew.
HOLDERS = Table(
    "holders",
    (
        Column(
            "who", "words", "what keeps the memory: model, a variable (losses in train()), Out[3], sys.last_traceback"
        ),
        Column("kind", "words", "parameter, gradient, optimizer, variable, output, traceback, graph or other"),
        Column("device", "int16", "GPU index; -1 for host memory"),
        Column("bytes", "int64", "how much; what several hold is counted for the first only; -1 if not counted"),
        Column("tensors", "int64", "in how many tensors"),
        Column("largest", "words", "the largest of them: [64, 3, 224, 224] float32"),
    ),
)

# Not recorded but found: gpulab.analysis.steps.detection makes it of a run.
STEPS = Table(
    "steps",
    (
        Column("start_ns", "int64", "when the step began, from the start of the run"),
        Column("end_ns", "int64", "when it ended"),
        Column("recorded", "bool", "it lies wholly where events were recorded"),
        Column("interior", "bool", "recorded, and not at the edge of the recording: only these are evidence"),
        Column("plain", "bool", "it ran warm and without the profiler: these tell the real step time"),
    ),
)

SIDE_TABLES = (GRIDS, SHAPES, COLLECTIVES, WAITS)
# What a run holds and a file stores.
TABLES = (
    *(EVENTS, *SIDE_TABLES, MEMORY, MARKS, GPU_SAMPLES, HOST_SAMPLES),
    *(WORKER_SAMPLES, STALLS, ALLOCATOR, HOLDERS),
)


def describe() -> str:
    """Every table and every column as text."""
    return "\n\n".join(table.describe() for table in (*TABLES, STEPS))
