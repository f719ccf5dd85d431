"""Time of a copy between host and GPU, without waiting in a queue."""

from __future__ import annotations

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.rates import kernel_rates
from gpulab.virtual.op_log.ops import Copy, CopyDirection

PINNED_FRAC = 0.80  # of the link's nominal bandwidth: large pinned copies
# The driver first copies pageable memory to a pinned buffer: 9.9 GB/s on an idle host of a V100, 5.3 to 6.5 while
# loader workers are busy, and 2.2 GB/s to the host on one of an H100, in published traces. Hosts differ more than GPUs.
TO_DEVICE_BYTES_PER_S = 6e9
TO_HOST_BYTES_PER_S = 4e9
MIN_COPY_NS = 1500  # time of the smallest copies: 1.2 to 2.2 us on V100, H100 and B200


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
