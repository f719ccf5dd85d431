"""What a step takes from this machine: H2D copies from its memory, and operators that run on its CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpulab.errors import RunError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.sensors.host.process import allocatable_bytes
from gpulab.virtual.cost_model.copies import copy_ns
from gpulab.virtual.op_log.ops import Copy, CopyDirection, HostOp, Record
from gpulab.wording import size

NOTABLE_FRAC = 0.01  # of the step time; less is not mentioned
USABLE_HOST_FRAC = 0.8  # of this machine's free memory; the kernel could kill this process for a batch that needs more


@dataclass(frozen=True, slots=True)
class HostWork:
    """Host copies and CPU work of one step."""

    bytes: int = 0  # copied to the GPU
    pageable: bool = False  # whether some of it is copied from unpinned memory
    copy_ns: float = 0.0  # estimated, like all GPU work
    cpu_ns: float = 0.0  # measured here: CPU operators run for real

    def is_notable(self, step_ns: float) -> bool:
        """Whether copies or CPU operators take a notable part of the step time."""
        return max(self.copy_ns, self.cpu_ns) > NOTABLE_FRAC * step_ns


def sum_host_work(records: Iterable[Record], spec: GpuSpec) -> HostWork:
    """Sum up the host copies and the CPU work in these records."""
    records = tuple(records)
    copies = [each for each in records if isinstance(each, Copy) and each.direction is CopyDirection.HOST_TO_DEVICE]
    return HostWork(
        bytes=sum(each.bytes for each in copies),
        pageable=any(not each.pinned for each in copies),
        copy_ns=sum(copy_ns(each, spec) for each in copies),
        cpu_ns=sum(each.elapsed_ns for each in records if isinstance(each, HostOp)),
    )


def check_host_memory(smaller: HostWork, samples: int, batch: int) -> None:
    """Check that the CPU tensors of a batch fit in this machine's memory, given those of a batch of `samples`.

    Raises RunError if not: CPU tensors are real, so an allocation that is too large would end the process.
    """
    needed_bytes, free = smaller.bytes / samples * batch, allocatable_bytes()
    if batch <= samples or needed_bytes <= USABLE_HOST_FRAC * free:
        return
    raise RunError(
        "The largest batch cannot be searched for.",
        why=f"the step builds its batch in CPU memory, which is real: {batch:,} samples need {size(needed_bytes)}, "
        f"and this machine has {size(free)} free",
        fix='build it on the virtual GPU, where it takes no real memory: torch.randn(batch, ..., device="cuda")',
    )
