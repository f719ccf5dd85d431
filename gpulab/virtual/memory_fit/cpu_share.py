"""What a step takes from this machine's CPU: data that are copied from its memory, and what it computes itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpulab.errors import RunError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.sensors.host.process import free_bytes
from gpulab.virtual.cost_model.copies import copy_ns
from gpulab.virtual.op_log.ops import Copy, HostOp, Record, Way
from gpulab.wording import size

NOTABLE_FRAC = 0.01  # of a step: what takes less is not worth a word
SPARED_FRAC = 0.8  # of the memory that is free here: a batch that wants more would have this process killed


@dataclass(frozen=True, slots=True)
class FromHost:
    """In one step."""

    bytes: int = 0  # copied to the GPU
    pageable: bool = False  # some of it from memory that is not pinned
    copy_ns: float = 0.0  # estimated, as all that the GPU does
    cpu_ns: float = 0.0  # measured here, as the CPU's work is real

    def notable(self, step_ns: float) -> bool:
        """Whether the step's time says as much of the copies or of this CPU as of the GPU."""
        return max(self.copy_ns, self.cpu_ns) > NOTABLE_FRAC * step_ns


def from_host(records: Iterable[Record], spec: GpuSpec) -> FromHost:
    """What these records tell of it."""
    records = tuple(records)
    copies = [each for each in records if isinstance(each, Copy) and each.way is Way.TO_DEVICE]
    return FromHost(
        bytes=sum(each.bytes for each in copies),
        pageable=any(not each.pinned for each in copies),
        copy_ns=sum(copy_ns(each, spec) for each in copies),
        cpu_ns=sum(each.ns for each in records if isinstance(each, HostOp)),
    )


def refuse_beyond_memory(told: FromHost, work: int, batch: int) -> None:
    """Raises RunError where a batch, made as this smaller one was, has no room in the memory of this machine.

    Tensors on the CPU are real: what asks for more memory than there is ends the process, not the search.
    """
    wanted, free = told.bytes / work * batch, free_bytes()
    if batch <= work or wanted <= SPARED_FRAC * free:
        return
    raise RunError(
        "The largest batch cannot be looked for.",
        why=f"the step makes its batch in CPU memory, which is real: {batch:,} samples are {size(wanted)}, "
        f"and this machine has {size(free)} free",
        fix='make it on the GPU, where it takes no memory here: torch.randn(batch, ..., device="cuda")',
    )
