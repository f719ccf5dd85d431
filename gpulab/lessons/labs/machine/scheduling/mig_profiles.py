"""The MIG profiles of an H100 SXM with 80 GB, and which of them fit on one GPU together.

Memory and multiprocessors are those that `nvidia-smi mig -lgip` prints for this GPU; slices and numbers of instances
are those of NVIDIA's MIG User Guide.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

COMPUTE_SLICES, MEMORY_SLICES = 7, 8
ALL_SMS = 132
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class MigProfile:
    """A MIG profile: its slices, its memory and multiprocessors, and how many instances a GPU can have of it."""

    name: str
    compute: int  # slices of 7
    memory: int  # slices of 8
    gib: float
    sms: int
    instances: int

    @property
    def bytes(self) -> int:
        """Its memory in bytes."""
        return int(self.gib * GIB)


def _profile(name: str, compute: int, memory: int, gib: float, sms: int, instances: int) -> MigProfile:
    return MigProfile(name=name, compute=compute, memory=memory, gib=gib, sms=sms, instances=instances)


H100_PROFILES = (
    _profile("1g.10gb", 1, 1, 9.75, 16, 7),
    _profile("1g.20gb", 1, 2, 19.62, 26, 4),
    _profile("2g.20gb", 2, 2, 19.62, 32, 3),
    _profile("3g.40gb", 3, 4, 39.38, 60, 2),
    _profile("4g.40gb", 4, 4, 39.38, 64, 1),
    _profile("7g.80gb", 7, 8, 79.12, 132, 1),
)


@dataclass(frozen=True, kw_only=True)
class MigNeed:
    """What a job needs: bytes of memory, and multiprocessors at its peak."""

    name: str
    bytes: int
    sms: int

    @property
    def gib(self) -> float:
        """Its memory in GiB."""
        return self.bytes / GIB


def fit_on_one_gpu(profiles: Iterable[MigProfile]) -> bool:
    """Return whether instances of these profiles fit on one GPU, by their slices.

    The slices are necessary: the driver also allows only certain positions, which `nvidia-smi mig -lgipp` lists.
    """
    chosen = list(profiles)
    return (
        sum(profile.compute for profile in chosen) <= COMPUTE_SLICES
        and sum(profile.memory for profile in chosen) <= MEMORY_SLICES
        and all(chosen.count(profile) <= profile.instances for profile in chosen)
    )


def profile_cells(need: MigNeed, profile: MigProfile | None) -> tuple[str, ...]:
    """Return a line of a table: what a job needs, and what it gets."""
    got = ("none", "", "") if profile is None else (profile.name, f"{profile.gib:.2f}", f"{profile.sms}")
    return (need.name, f"{need.gib:.2f}", f"{need.sms}", *got)
