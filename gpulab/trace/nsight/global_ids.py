"""Serialised ids of Nsight Systems: 16 bits for host and virtual machine, 24 for the process, 24 for the thread.

https://docs.nvidia.com/nsight-systems: "Serialized process and thread identifiers". Ids are signed 64-bit integers.
"""

from __future__ import annotations

from gpulab.intervals import Ints

THREAD_BITS = 24
_MASK = (1 << THREAD_BITS) - 1


def process_of(global_ids: Ints) -> Ints:
    """Host and process of each id: what a globalPid and a globalTid of one process have in common."""
    shifted: Ints = global_ids >> THREAD_BITS
    return shifted


def process_expression(column: str) -> str:
    """The same as an expression of SQL."""
    return f"{column} >> {THREAD_BITS}"


def process_id(process: int) -> int:
    """The process id of the operating system."""
    return process & _MASK


def thread_id(global_tid: int) -> int:
    """The thread id of the operating system."""
    return global_tid & _MASK
