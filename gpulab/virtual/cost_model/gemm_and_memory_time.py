"""The two basic costs: a pass over memory, and a matrix product in tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.rates import kernel_rates

CACHED_PART = 3  # up to 1/3 of the L2 cache's size is still cached from the previous pass
CACHE_SPEEDUP = 1.8  # speed of cached bytes relative to memory: V100, tensors of 2 to 6 MB, in a published trace
BLOCKS_PER_SM_FOR_PEAK = 0.5  # blocks per multiprocessor that a pass needs for the full memory bandwidth
GEMM_MEMORY_FRAC = 0.85  # share of the memory bandwidth that memory-bound matrix products reach
GEMM_FIXED_NS = 1400.0  # added to a kernel's fixed time: H100, small products, 3 us before the first step
FLOAT32_STEP_NS = 25.0  # minimum time of one step along the inner dimension without tensor cores
FLOAT32_PROLOGUE_STEPS = 12  # cost of a tile's prologue and epilogue, in steps along the inner dimension
SPLITS = (1, 2, 4, 8, 16)  # split-K: parts of the inner dimension, to fill a GPU
MIN_SPLIT_STEPS = 512  # minimum steps along the inner dimension for a part


def memory_pass_ns(
    traffic_bytes: float, spec: GpuSpec, share: float, *, rows: int | None = None, fixed_factor: float = 1.0
) -> float:
    """Return the time to move bytes once from or to memory, at a share of its bandwidth.

    `rows`: number of blocks of the kernel; few blocks do not reach the full bandwidth. None: there are enough blocks.
    `fixed_factor`: factor on the fixed time of a kernel.
    """
    rate = spec.memory_bytes_per_s * share / 1e9
    if rows is not None:
        rate *= min(1.0, rows / (BLOCKS_PER_SM_FOR_PEAK * spec.multiprocessors))
    cached_bytes = min(traffic_bytes, spec.l2_bytes / CACHED_PART)
    return (
        kernel_rates(spec).fixed_ns * fixed_factor
        + cached_bytes / (rate * CACHE_SPEEDUP)
        + (traffic_bytes - cached_bytes) / rate
    )


@dataclass(frozen=True, slots=True)
class GemmShape:
    """A batch of `batch` matrix products, rows x inner by inner x columns."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> float:
        """Floating-point operations; a multiply-add counts as two."""
        return 2.0 * self.batch * self.rows * self.inner * self.columns


@dataclass(frozen=True, slots=True)
class GemmUnits:
    """Arithmetic units for matrix products (tensor cores or not): rate of the whole GPU, and tile parameters."""

    flops_per_s: float  # per second, reached by large products
    tiles: tuple[tuple[int, int, float], ...]  # rows, columns, speed relative to the largest tile
    prologue_steps: int
    step_ns: float


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tile size and split of a matrix product, and its time."""

    rows: int
    columns: int
    split_k: int  # parts of the inner dimension
    blocks: int
    ns: float
    split_k_reduce_ns: float  # time of the split-K reduction kernel; 0 if there is none


# Smaller tiles read their inputs more often for the same arithmetic.
FLOAT32_TILES = ((128, 128, 1.0), (128, 64, 0.96), (64, 64, 0.88), (64, 32, 0.70), (32, 32, 0.50))
TENSOR_CORE_TILES = ((256, 128, 1.0), (128, 128, 0.96), (128, 64, 0.85), (64, 64, 0.65), (32, 32, 0.30))
MISALIGNED_TILES = 2  # only the first two exist for sizes that are not aligned to 16 bytes: H100 trace, 128 x 128


def float32_units(spec: GpuSpec, share: float | None = None) -> GemmUnits:
    """Return the float32 units, without tensor cores."""
    flops = spec.float32_flops_per_s * (kernel_rates(spec).float32_gemm if share is None else share)
    return GemmUnits(flops, FLOAT32_TILES, FLOAT32_PROLOGUE_STEPS, FLOAT32_STEP_NS * 1500 / spec.sm_clock_mhz)


def tensor_core_units(spec: GpuSpec, *, tf32: bool, factor: float = 1.0, misaligned: bool = False) -> GemmUnits:
    """Return the tensor cores for half precision or TF32; the float32 units if the GPU has none for that type."""
    gpu_rates = kernel_rates(spec)
    peak = (spec.tf32_flops_per_s if tf32 else spec.half_flops_per_s) or 0.0
    flops = peak * (gpu_rates.tf32_gemm if tf32 else gpu_rates.half_gemm) * factor
    float32 = float32_units(spec)
    if flops <= float32.flops_per_s * factor:
        return GemmUnits(float32.flops_per_s * factor, float32.tiles, float32.prologue_steps, float32.step_ns)
    # TF32 operands are twice as large as half precision: half as many fit in a step.
    prologue, step = (
        (gpu_rates.prologue_steps // 2, gpu_rates.step_ns * 2)
        if tf32
        else (gpu_rates.prologue_steps, gpu_rates.step_ns)
    )
    return GemmUnits(
        flops, TENSOR_CORE_TILES[:MISALIGNED_TILES] if misaligned and not tf32 else TENSOR_CORE_TILES, prologue, step
    )


def fastest_tiling(
    shape: GemmShape, spec: GpuSpec, engine: GemmUnits, traffic_bytes: float, *, reduce_kernel: bool = True
) -> Tiling:
    """Return the fastest tiling of a product, as the libraries' heuristics choose it.

    Blocks run in waves; a last, half-empty wave takes as long as a full one. `reduce_kernel`: a split-K product needs a
    separate reduction kernel.
    """
    flops_per_ns = engine.flops_per_s / spec.multiprocessors / 1e9  # of one multiprocessor
    memory_ns = traffic_bytes / (spec.memory_bytes_per_s * GEMM_MEMORY_FRAC / 1e9)
    fixed_ns = kernel_rates(spec).fixed_ns + GEMM_FIXED_NS
    best: Tiling | None = None
    for split in SPLITS:
        adding_ns = _adding_ns(shape, spec, split) if reduce_kernel and split > 1 else 0.0
        # A part shorter than the minimum takes as long as the minimum.
        steps = max(ceil(shape.inner / split), min(shape.inner, MIN_SPLIT_STEPS))
        for height, width, speed in engine.tiles:
            for rows, columns in ((height, width), (width, height)):
                blocks = shape.batch * ceil(shape.rows / rows) * ceil(shape.columns / columns) * split
                waves = ceil(blocks / spec.multiprocessors)
                work_ns = waves * 2.0 * rows * columns * (steps + engine.prologue_steps) / (flops_per_ns * speed)
                # Few blocks do not hide memory latency.
                ns = fixed_ns + max(work_ns, steps * engine.step_ns, memory_ns)
                if best is None or ns + adding_ns < best.ns + best.split_k_reduce_ns:
                    best = Tiling(rows, columns, split, blocks, ns, adding_ns)
    assert best is not None
    return best


def _adding_ns(shape: GemmShape, spec: GpuSpec, split: int) -> float:
    """Return the time of the split-K reduction: it reads float32 parts and writes one result."""
    return memory_pass_ns(
        4.0 * shape.batch * shape.rows * shape.columns * (split + 1), spec, kernel_rates(spec).streaming
    )
