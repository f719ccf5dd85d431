"""The record of a launch: how the accesses of a warp combine, and how many of its lanes work.

A warp is 32 threads that execute one instruction at a time. Their accesses by one instruction are one request. Global
memory is moved in sectors of 32 bytes; shared memory has 32 banks of 4 bytes, and a bank gives one word at a time; the
constant cache gives one word at a time (NVIDIA, CUDA C++ Programming Guide and Best Practices Guide).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulab.lessons.labs import tables
from gpulab.lessons.labs.kernels.programs.device_arrays import CONSTANT, GLOBAL, SHARED, Access
from gpulab.views.sheet.view import View
from gpulab.wording import percent

WARP = 32  # threads
SECTOR_BYTES = 32
BANKS, BANK_BYTES = 32, 4
_HEADER = (
    "", "global loads", "requests", "sectors", "sectors per request", "bytes used", "bank conflicts", "lanes active",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The accesses to one kind of memory, or to one array of it."""

    accesses: int = 0  # reads and writes of single threads
    loads: int = 0  # the reads among them
    requests: int = 0  # instructions of warps
    useful_bytes: int = 0  # different bytes that the requests ask for
    sectors: int = 0  # of 32 bytes: global memory only
    passes: int = 0  # words that the busiest bank gives, or different words of the constant cache

    @property
    def sectors_per_request(self) -> float:
        """Sectors that a request moves: 4 for 32 neighbouring float32 values, at most 32."""
        return self.sectors / max(1, self.requests)

    @property
    def useful_frac(self) -> float:
        """The part of the moved bytes that was asked for, 0-1."""
        return self.useful_bytes / max(1, self.sectors * SECTOR_BYTES)

    @property
    def conflicts(self) -> int:
        """Passes beyond the first one of each request."""
        return self.passes - self.requests


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What the threads of a launch read, wrote and executed."""

    blocks: int
    threads_per_block: int
    by_array: Mapping[tuple[str, str], Traffic]  # by kind of memory and array
    active_frac: float  # mean share of the 32 lanes that execute an instruction, 0-1
    warp_lines: int  # lines of the program that warps execute, with idle lanes or without
    shared_bytes: int  # of a block

    @classmethod
    def of(
        cls,
        blocks: int,
        threads_per_block: int,
        accesses: Sequence[Access],
        executed: Counter[tuple[int, int, int, int]],
        shared_bytes: int,
    ) -> Launch:
        """Return the record of these accesses and executed lines."""
        requests: dict[tuple[object, ...], list[Access]] = defaultdict(list)
        for access in accesses:
            warp = access.thread // WARP
            place = (access.block, warp, access.space, access.array, access.is_store, access.line, access.nth)
            requests[place].append(access)
        parts: dict[tuple[str, str], list[Traffic]] = defaultdict(list)
        for request in requests.values():
            parts[request[0].space, request[0].array].append(_request(request))
        return cls(
            blocks=blocks,
            threads_per_block=threads_per_block,
            by_array={key: _sum(some) for key, some in parts.items()},
            active_frac=sum(executed.values()) / max(1, WARP * len(executed)),
            warp_lines=len(executed),
            shared_bytes=shared_bytes,
        )

    @property
    def global_memory(self) -> Traffic:
        """All accesses to global memory."""
        return self._of_space(GLOBAL)

    @property
    def shared_memory(self) -> Traffic:
        """All accesses to shared memory."""
        return self._of_space(SHARED)

    @property
    def constant_memory(self) -> Traffic:
        """All accesses to constant memory."""
        return self._of_space(CONSTANT)

    def of_array(self, name: str) -> Traffic:
        """Return the accesses to one parameter of the kernel, in global memory."""
        return self.by_array.get((GLOBAL, name), Traffic())

    def _of_space(self, space: str) -> Traffic:
        return _sum([traffic for (kind, _), traffic in self.by_array.items() if kind == space])


def access_table(launches: Mapping[str, Launch], *, below: str = "") -> View:
    """Compare launches: requests, sectors and used bytes of global memory, conflicts of shared memory, idle lanes."""
    lines = []
    for name, launch in launches.items():
        memory, shared = launch.global_memory, launch.shared_memory
        lines.append((
            name, f"{memory.loads:,}", f"{memory.requests:,}", f"{memory.sectors:,}",
            f"{memory.sectors_per_request:.1f}", percent(memory.useful_frac),
            f"{shared.conflicts:,}" if shared.requests else "-", percent(launch.active_frac),
        ))  # fmt: skip
    return tables.table_view(_HEADER, lines, below=below)


def array_table(launches: Mapping[str, Launch], *arrays: str, below: str = "") -> View:
    """Compare the traffic of single parameters in global memory: one row for each launch and array."""
    lines = []
    for name, launch in launches.items():
        for array in arrays:
            traffic = launch.of_array(array)
            cells = (f"{traffic.requests:,}", f"{traffic.sectors:,}", f"{traffic.sectors_per_request:.1f}")
            lines.append((name, array, *cells))
    header = ("", "array", "requests", "sectors", "sectors per request")
    return tables.table_view(header, lines, left=2, below=below)


def _request(accesses: Sequence[Access]) -> Traffic:
    """Return the traffic of one instruction of a warp."""
    places = {(each.address, each.size) for each in accesses}
    bank_rows = {
        row for address, size in places for row in range(address // BANK_BYTES, -(-(address + size) // BANK_BYTES))
    }
    space, loads = accesses[0].space, 0 if accesses[0].is_store else len(accesses)
    common = {"accesses": len(accesses), "loads": loads, "requests": 1, "useful_bytes": sum(size for _, size in places)}
    if space == GLOBAL:
        sectors = {
            sector
            for address, size in places
            for sector in range(address // SECTOR_BYTES, (address + size - 1) // SECTOR_BYTES + 1)
        }
        return Traffic(**common, sectors=len(sectors))
    if space == SHARED:
        return Traffic(**common, passes=max(Counter(row % BANKS for row in bank_rows).values()))
    return Traffic(**common, passes=len(bank_rows))


def _sum(parts: Sequence[Traffic]) -> Traffic:
    names = ("accesses", "loads", "requests", "useful_bytes", "sectors", "passes")
    return Traffic(**{name: sum(getattr(each, name) for each in parts) for name in names})
