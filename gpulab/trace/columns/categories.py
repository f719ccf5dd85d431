"""Classify events by category and name, for every version of Kineto since torch 1.8.

Only the category separates device work from host work. A `stream` argument does not: Triton's host operators have one.
"""

from __future__ import annotations

import re
from functools import lru_cache

from gpulab.tables import EventKind


class EventFamily:
    """Families of categories; the name then decides the kind. Device rows are SYNC_RECORD and above.

    Plain integers: when numpy compares an array with a member of an IntEnum, it looks up special names in the enum
    class and drops any exception of that, before Python 3.12 even a Ctrl-C.
    """

    UNKNOWN = 0  # a category gpulab does not know; its events are left out and reported
    DROPPED = 1  # known but no work: spans of the profiler, copies of host ranges on device lanes
    OP = 2
    MIXED = 3  # torch 1.8-1.11: operators and annotations under one category
    ANNOTATION = 4
    PYTHON = 5
    RUNTIME = 6
    OVERHEAD = 7
    SYNC_RECORD = 8
    KERNEL = 9
    MEMCPY = 10
    MEMSET = 11


# Lower case: 2022 had "gpu_user_Annotation", 2021 had "Kernel".
_FAMILIES = {
    "operator": EventFamily.MIXED,
    "cpu_op": EventFamily.OP,
    "user_annotation": EventFamily.ANNOTATION,
    "python_function": EventFamily.PYTHON,
    "runtime": EventFamily.RUNTIME,
    "overhead": EventFamily.OVERHEAD,
    "cuda_sync": EventFamily.SYNC_RECORD,
    "xpu_sync": EventFamily.SYNC_RECORD,
    "kernel": EventFamily.KERNEL,
    "memcpy": EventFamily.MEMCPY,
    "gpu_memcpy": EventFamily.MEMCPY,
    "memset": EventFamily.MEMSET,
    "gpu_memset": EventFamily.MEMSET,
    "gpu_user_annotation": EventFamily.DROPPED,
    "trace": EventFamily.DROPPED,
    "cuda_event": EventFamily.DROPPED,
    "cuda_profiler_range": EventFamily.DROPPED,
    "hardware_counters": EventFamily.DROPPED,
}

# In their original spelling: some files contain no other categories; the usual ones of all versions.
CATEGORIES = (
    *(category for category in _FAMILIES if category not in ("operator", "runtime", "trace")),
    *("Operator", "Runtime", "Kernel", "Memcpy", "Memset", "Trace", "gpu_user_Annotation"),
    *("cuda_runtime", "cuda_driver"),
)

_STEP = re.compile(r"ProfilerStep#\d")
_LOADER = re.compile(r"enumerate\(DataLoader\)#.*__next__")
# In the mixed category, namespaced names, autograd nodes and plain identifiers are operators.
_OPERATOR = re.compile(r"\w+::|\w*Backward\w*$|[a-z]\w*$")

_LAUNCH = re.compile(r"Launch(?!HostFunc)")
_WAIT = re.compile(r"Synchronize|QueueFinish|EventWait")
_COPY = re.compile(r"Memcpy|Memset|MemoryCopy|MemoryFill")
_ALLOC = re.compile(
    r"Malloc|Free|HostAlloc|Host(?:Unr|R)egister|MemPoolTrim"
    r"|Mem(?:Alloc|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess)"
)
_GRAPH_NODE = re.compile(r"Node")  # building a CUDA graph does not copy or allocate anything yet

# A letter before "all" would match "small_reduce" as a collective.
_COLLECTIVE = re.compile(
    r"nccl|rccl|oneccl|hccl|nvshmem|deep_?ep|cross_device_reduce|multimem_all_reduce|one_shot|two_shot"
    r"|(?<![a-z])all_?(?:reduce|gather|to_?all)|reduce_?scatter",
    re.IGNORECASE,
)
# ROCm runs some copies and fills as kernels, and records them as kernels.
_COPY_KERNEL = re.compile(r"MEMORY_COPY_|(?:__amd_rocclr_)?copyBuffer|Copy(?:Host|Device)To")
_FILL_KERNEL = re.compile(r"(?:__amd_rocclr_)?fillBuffer")

_KIND_OF_FAMILY = {
    EventFamily.PYTHON: EventKind.PYTHON,
    EventFamily.OVERHEAD: EventKind.OVERHEAD,
    EventFamily.SYNC_RECORD: EventKind.SYNC_RECORD,
    EventFamily.MEMCPY: EventKind.MEMCPY,
    EventFamily.MEMSET: EventKind.MEMSET,
}


def event_family(category: str) -> int:
    """The family of a category."""
    lower = category.lower()
    if lower in _FAMILIES:
        return _FAMILIES[lower]
    if lower.endswith(("_runtime", "_driver")):  # cuda, xpu, mtia, privateuse1; HIP calls itself cuda
        return EventFamily.RUNTIME
    return EventFamily.UNKNOWN


def kind_of(family: int, name: str) -> EventKind:
    """The kind of an event of a known family."""
    if family in _KIND_OF_FAMILY:
        return _KIND_OF_FAMILY[family]
    if family == EventFamily.RUNTIME:
        return _call(name)
    if family == EventFamily.KERNEL:
        return _kernel(name)
    return _range(family, name)


def loader_has_workers(name: str) -> bool | None:
    """Whether the DataLoader behind a LOADER event has workers; None if its class does not show it."""
    if "SingleProcess" in name:
        return False
    return True if "MultiProcess" in name else None


def _range(family: int, name: str) -> EventKind:
    if _STEP.match(name):
        return EventKind.STEP
    if _LOADER.match(name):
        return EventKind.LOADER
    if family == EventFamily.OP or (family == EventFamily.MIXED and _OPERATOR.match(name)):
        return EventKind.OP
    return EventKind.ANNOTATION


@lru_cache(maxsize=4096)
def _call(name: str) -> EventKind:
    if _GRAPH_NODE.search(name):
        return EventKind.RUNTIME
    if _LAUNCH.search(name):
        return EventKind.LAUNCH
    if _WAIT.search(name):
        return EventKind.SYNC
    if _COPY.search(name):
        return EventKind.COPY_CALL
    return EventKind.ALLOC if _ALLOC.search(name) else EventKind.RUNTIME


@lru_cache(maxsize=4096)
def _kernel(name: str) -> EventKind:
    if _COLLECTIVE.search(name):
        return EventKind.COLLECTIVE
    if _COPY_KERNEL.match(name):
        return EventKind.MEMCPY
    return EventKind.MEMSET if _FILL_KERNEL.match(name) else EventKind.KERNEL
