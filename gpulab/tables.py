"""Every table of a run and its columns: name, dtype, meaning. Tables of sensor readings: gpulab.sensor_tables."""

from __future__ import annotations

from enum import IntEnum

from gpulab.columns import Column
from gpulab.rows import Table
from gpulab.sensor_tables import GPU_SAMPLES as GPU_SAMPLES
from gpulab.sensor_tables import HOST_SAMPLES as HOST_SAMPLES
from gpulab.sensor_tables import WORKER_SAMPLES as WORKER_SAMPLES


class EventKind(IntEnum):
    """Kinds of event, the same for every trace version. Device work has KERNEL or a higher value."""

    OP = 0  # a PyTorch operator on the host
    ANNOTATION = 1  # record_function ranges, Optimizer.step, forward of a module
    STEP = 2  # ProfilerStep#N; NVTX ranges of other profilers: "step 3"
    LOADER = 3  # enumerate(DataLoader)#...__next__
    PYTHON = 4  # a Python frame (with_stack)
    LAUNCH = 5  # a runtime call that starts a kernel or a graph
    SYNC = 6  # a runtime call that waits for the device
    COPY_CALL = 7  # a runtime call that copies or sets memory
    ALLOC = 8  # a runtime call that allocates or frees
    RUNTIME = 9  # any other runtime or driver call
    OVERHEAD = 10  # overhead of the profiler
    SYNC_RECORD = 11  # cuda_sync rows: which stream or event was waited for; not device work
    KERNEL = 12
    MEMCPY = 13
    MEMSET = 14
    COLLECTIVE = 15  # a kernel that communicates (NCCL, RCCL, ...)


DEVICE_KINDS = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET, EventKind.COLLECTIVE)
RUNTIME_KINDS = (EventKind.LAUNCH, EventKind.SYNC, EventKind.COPY_CALL, EventKind.ALLOC, EventKind.RUNTIME)


class MarkKind(IntEnum):
    """Kinds of step mark."""

    NEXT = 0  # one call of DataLoader.__next__, from start to return
    OPTIMIZER = 1  # one optimizer step just ended
    USER = 2  # gpulab.step() was called
    BACKWARD = 3  # a backward pass just ended, in a program that has called no optimizer
    CLOSURE = 4  # a closure that an optimizer called just ended


class StallKind(IntEnum):
    """Kinds of stall of the main thread's Python code."""

    GC = 0  # a run of Python's garbage collector
    COMPILE = 1  # torch.compile compiles or recompiles a graph


EVENTS = Table(
    "events",
    (
        Column("kind", "int8", "kind of event: a gpulab.tables.EventKind", EventKind),
        Column("name", "words", "operator, kernel, runtime call or annotation, as the trace names it", required=True),
        Column("start_ns", "int64", "when it started, from the start of the run"),
        Column("dur_ns", "int64", "how long it took"),
        Column("thread", "int32", "host thread, an index into run.threads; -1 for device work"),
        Column("device", "int16", "GPU index; -1 for host events"),
        Column("stream", "int64", "stream of device work; -1 for host events or unknown"),
        Column("correlation", "int64", "links a runtime call to the device work it started; -1 if none"),
        Column("bytes", "int64", "bytes copied or set; -1 if unknown"),
    ),
)

# Side tables: columns that only some events have. Their `event` is a row number of the events table.
_EVENT = Column("event", "int32", "row number in the events table")

GRIDS = Table(
    "grids",
    (
        _EVENT,
        Column("grid", "int64", "thread blocks of the kernel; -1 if unknown"),
        Column("block", "int32", "threads per block; -1 if unknown"),
        Column("registers", "int32", "registers per thread; -1 if unknown"),
        Column("shared_bytes", "int64", "shared memory per block, static and dynamic; -1 if unknown"),
        Column("occupancy_frac", "float32", "occupancy as Kineto estimates it, 0-1; NaN if unknown"),
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
        Column("collective", "words", "the operation, as the backend names it: allreduce, _allgather_base"),
        Column("dtype", "words", "type of the elements"),
        Column("elements_in", "int64", "elements each rank sends; -1 if unknown"),
        Column("elements_out", "int64", "elements each rank receives; -1 if unknown"),
        Column("group", "words", "name of the process group"),
        Column("group_description", "words", "what the group is for, as the program describes it: mesh_tp"),
        Column("group_size", "int32", "ranks in the group; -1 if unknown"),
        Column("sequence", "int64", "number of the collective within its group, the same on all ranks; -1 if unknown"),
    ),
)

WAITS = Table(
    "waits",
    (
        _EVENT,
        Column("wait_on_stream", "int64", "the stream waited for; -1 if none or unknown"),
        Column("wait_on_correlation", "int64", "correlation of the call that recorded the awaited event, or -1"),
    ),
)

MEMORY = Table(
    "memory",
    (
        Column("at_ns", "int64", "time of the allocation or free, from the start of the run"),
        Column("thread", "int32", "host thread that allocated or freed, an index into run.threads"),
        Column("device", "int16", "GPU index; -1 for host memory"),
        Column("bytes", "int64", "size; negative for a free; 0 if unknown", signed=True),
        Column("address", "int64", "memory address; -1 if unknown"),
        Column("allocated_bytes", "int64", "allocated memory of this device afterwards; -1 if unknown"),
        Column("reserved_bytes", "int64", "memory reserved by PyTorch on this device afterwards; -1 if unknown"),
    ),
)

MARKS = Table(
    "marks",
    (
        Column("kind", "int8", "kind of mark: a gpulab.tables.MarkKind", MarkKind),
        Column("start_ns", "int64", "when the call started, from the start of the run"),
        Column("end_ns", "int64", "when it returned"),
        Column("loader", "int32", "index into run.loaders for NEXT; -1 otherwise"),
        Column("epoch", "int32", "number of the pass over that loader; -1 otherwise"),
        Column("yielded", "bool", "NEXT returned a batch (False: the pass had ended)"),
        Column("thread_cpu_ns", "int64", "CPU time the calling thread used between start and end"),
        Column("process_cpu_ns", "int64", "CPU time of the process so far, all threads, at start_ns; -1 unless NEXT"),
        Column("process_cpu_end_ns", "int64", "the same at end_ns"),
        Column("optimizer", "int32", "number of the optimizer for OPTIMIZER, by its first step; -1 otherwise"),
    ),
)

PHASES = Table(
    "phases",
    (
        Column("name", "words", "name of the phase, as given to gpulab.phase(): validation", required=True),
        Column("start_ns", "int64", "when it began, from the start of the run"),
        Column("end_ns", "int64", "when it ended; phases may contain each other"),
    ),
)

STALLS = Table(
    "stalls",
    (
        Column("kind", "int8", "kind of stall: a gpulab.tables.StallKind", StallKind),
        Column("start_ns", "int64", "when it started, from the start of the run"),
        Column("dur_ns", "int64", "how long it took"),
        Column("what", "words", "details: generation 2, or the function that was compiled"),
    ),
)

ALLOCATOR = Table(
    "allocator",
    (
        Column("at_ns", "int64", "when the state of PyTorch's CUDA allocator was read: at the start of a step"),
        Column("device", "int16", "GPU index"),
        Column("allocated_bytes", "int64", "allocated to tensors"),
        Column("reserved_bytes", "int64", "reserved from the driver: allocated or cached"),
        Column("inactive_split_bytes", "int64", "free parts of split blocks: memory lost to fragmentation"),
        Column("peak_allocated_bytes", "int64", "peak of allocated memory so far"),
        Column("peak_reserved_bytes", "int64", "peak of reserved memory so far"),
        Column("retries", "int64", "allocations so far that were retried after emptying the cache"),
        Column("device_allocs", "int64", "driver allocations (cudaMalloc) so far"),
        Column("out_of_memory", "int64", "out-of-memory errors so far"),
    ),
)

# After an out-of-memory error: everything that references allocated memory. Otherwise: the user's lists that collect
# tensors with their autograd graphs (kind graph, device -1, bytes by which they grew).
HOLDERS = Table(
    "holders",
    (
        Column(
            "who",
            "words",
            "what references the memory: model, a variable (losses in train()), Out[3], sys.last_traceback",
        ),
        Column("kind", "words", "parameter, gradient, optimizer, variable, output, traceback, graph, buffer or other"),
        Column("device", "int16", "GPU index; -1 for host memory"),
        Column("bytes", "int64", "size; shared memory is counted for its first holder only; -1 if not counted"),
        Column("tensors", "int64", "number of tensors"),
        Column("largest", "words", "the largest tensor: [64, 3, 224, 224] float32"),
    ),
)

# Not recorded: computed from a run by gpulab.analysis.steps.detection.
STEPS = Table(
    "steps",
    (
        Column("start_ns", "int64", "when the step started, from the start of the run"),
        Column("end_ns", "int64", "when it ended"),
        Column("recorded", "bool", "the whole step was recorded with events"),
        Column(
            "interior", "bool", "recorded, and not at the edge of the recording: only these steps are used as evidence"
        ),
        Column("plain", "bool", "warm and without the profiler: these steps show the real step time"),
    ),
)

SIDE_TABLES = (GRIDS, SHAPES, COLLECTIVES, WAITS)
# The tables of a run, all stored in its file.
TABLES = (
    *(EVENTS, *SIDE_TABLES, MEMORY, MARKS, GPU_SAMPLES, HOST_SAMPLES),
    *(WORKER_SAMPLES, STALLS, ALLOCATOR, HOLDERS, PHASES),
)
# The fields of a Run that are tables: TRACED are those that a trace fills, FIELDS are all of them.
TRACE_TABLES = {
    "event_rows": EVENTS,
    "grid_rows": GRIDS,
    "shape_rows": SHAPES,
    "collective_rows": COLLECTIVES,
    "wait_rows": WAITS,
    "memory_rows": MEMORY,
}
TABLE_FIELDS = {
    **TRACE_TABLES,
    "mark_rows": MARKS,
    "gpu_rows": GPU_SAMPLES,
    "host_rows": HOST_SAMPLES,
    "worker_rows": WORKER_SAMPLES,
    "stall_rows": STALLS,
    "allocator_rows": ALLOCATOR,
    "holder_rows": HOLDERS,
    "phase_rows": PHASES,
}


def describe() -> str:
    """Describe every table and column as text."""
    return "\n\n".join(table.describe() for table in (*TABLES, STEPS))
