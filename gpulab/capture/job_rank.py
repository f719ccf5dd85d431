"""The rank of this process in a distributed job: from the launcher's environment, or from torch.distributed."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

# Rank, number of ranks: torchrun (also Accelerate, DeepSpeed, Ray Train), Open MPI, MPICH and Intel MPI, Slurm.
OWN_VARIABLES = ("GPULAB_RANK", "GPULAB_WORLD_SIZE")  # of ranks that a program starts without a launcher
_VARIABLES = (
    OWN_VARIABLES,
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


class JobRank(NamedTuple):
    """One process of a job."""

    rank: int
    world_size: int


def launched_rank(environ: Mapping[str, str] | None = None) -> JobRank | None:
    """Return the rank that a launcher gave to this process; None if it is alone or was not launched as a rank.

    A Slurm batch script of one task is no job of several ranks.
    """
    environ = os.environ if environ is None else environ
    for rank_variable, size_variable in _VARIABLES:
        rank, world_size = _number(environ.get(rank_variable)), _number(environ.get(size_variable))
        if rank is not None and world_size is not None and rank < world_size:
            return JobRank(rank, world_size) if world_size > 1 else None
    return None


def joined_rank() -> JobRank | None:
    """Return the rank of this process in the default process group of torch.distributed; None if there is none."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    world_size = distributed.get_world_size()
    return JobRank(distributed.get_rank(), world_size) if world_size > 1 else None


def has_open_exchanges() -> bool:
    """Whether an exchange between ranks may be open between two lines of Python: with gloo, an isend until its wait.

    Operators of NCCL end when they are launched.
    """
    return joined_rank() is not None and sys.modules["torch.distributed"].get_backend() != "nccl"


def rank_facts() -> dict[str, str]:
    """Return rank, world size and name of the machine as facts of a run; {} if this process is alone."""
    job = joined_rank() or launched_rank()
    return {} if job is None else {"rank": str(job.rank), "world_size": str(job.world_size), "host": platform.node()}


def rank_from_facts(facts: Mapping[str, str]) -> int | None:
    """Return the rank in the facts of a run; None if it was alone."""
    return _number(facts.get("rank"))


def rank_name(rank: int) -> str:
    """Return the name of a rank in names of runs and files: "rank3"."""
    return f"rank{rank}"


def rank_of_name(name: str) -> int | None:
    """Return the rank in such a name; None if it is another name."""
    return _number(name.removeprefix("rank")) if name.startswith("rank") else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
