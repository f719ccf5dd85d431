"""Time of a copy between host and GPU, without waiting in a queue."""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.op_log.ops import Copy, CopyDirection

PINNED_FRAC = 0.80  # of the link's nominal bandwidth: large pinned copies; 0.87 measured on an H100 (55 GB/s)
# The driver first copies pageable memory to a pinned buffer: 9.9 GB/s on an idle host of a V100, 5.3 to 6.5 while
# loader workers are busy, 6.9 to 9.7 on the host of an H100. To the host, into the new memory of a .cpu(), which the
# system provides page by page: 1.2 to 1.3 GB/s on a virtual machine with an H100, 2.2 GB/s in a published trace of one;
# into memory that was used before: 14 GB/s. Hosts differ more than GPUs.
TO_DEVICE_BYTES_PER_S = 7e9
TO_HOST_BYTES_PER_S = 2e9
MIN_COPY_NS = 1500  # time of the smallest copies: 1.2 to 2.2 us on V100, H100 and B200


def copy_class(copy: Copy) -> OpClass | None:
    """The class of a copy whose time depends on the host's memory; None for others, which are certain enough."""
    if copy.pinned or copy.direction is CopyDirection.DEVICE_TO_DEVICE:
        return None
    to_device = copy.direction is CopyDirection.HOST_TO_DEVICE
    return OpClass.PAGEABLE_TO_DEVICE if to_device else OpClass.PAGEABLE_TO_HOST


def copy_ns(copy: Copy, spec: GpuSpec) -> int:
    """Return the time that the copy engine needs, in ns."""
    if copy.direction is CopyDirection.DEVICE_TO_DEVICE:
        return round(MIN_COPY_NS + 2e9 * copy.bytes / (spec.memory_bytes_per_s * kernel_rates(spec).streaming))
    rate = spec.link_bytes_per_s * PINNED_FRAC
    if not copy.pinned:
        rate = min(
            rate, TO_DEVICE_BYTES_PER_S if copy.direction is CopyDirection.HOST_TO_DEVICE else TO_HOST_BYTES_PER_S
        )
    return round(MIN_COPY_NS + 1e9 * copy.bytes / rate)
