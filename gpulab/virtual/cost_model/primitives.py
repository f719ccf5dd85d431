"""The two prices that all others are made of: a pass over memory, and a product of matrices in tiles."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.virtual.cost_model.rates import rates

CACHED = 3  # a pass finds up to a third of the L2 cache's size there, left by the pass before
CACHE_GAIN = 1.8  # and that comes so much faster: V100, 2 to 6 MB tensors, in a published trace
BLOCKS_FOR_ALL = 0.5  # blocks per multiprocessor from which a pass gets all of the memory's rate
PRODUCT_MEMORY = 0.85  # share of the memory's rate that products reach where they wait for it
FIXED_PRODUCT_NS = 1400.0  # beyond that of another kernel: H100, small products, 3 us before the first step
STEP_PLAIN_NS = 25.0  # the least time of a step along the inner dimension on the ordinary units
PLAIN_PROLOGUE = 12  # steps along the inner dimension that the ends of a tile cost as much as
SPLITS = (1, 2, 4, 8, 16)  # parts that the inner dimension may be divided in, to fill a GPU
LEAST_SPLIT = 512  # steps along the inner dimension that are worth a part of their own


def pass_ns(moved: float, spec: GpuSpec, share: float, *, rows: int | None = None, fixed: float = 1.0) -> float:
    """So many bytes once over the memory's bus, at a share of its rate.

    `rows`: as many blocks as there are of these work on it, be they few; else as many as the size asks for.
    """
    rate = spec.memory_bytes_per_s * share / 1e9
    if rows is not None:
        rate *= min(1.0, rows / (BLOCKS_FOR_ALL * spec.multiprocessors))
    near = min(moved, spec.l2_bytes / CACHED)
    return rates(spec).fixed_ns * fixed + near / (rate * CACHE_GAIN) + (moved - near) / rate


@dataclass(frozen=True, slots=True)
class Shape:
    """So many products of rows x inner by inner x columns."""

    times: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> float:
        """A multiply-add as two."""
        return 2.0 * self.times * self.rows * self.inner * self.columns


@dataclass(frozen=True, slots=True)
class Engine:
    """What multiplies: its rate on all of the GPU, and how its tiles behave."""

    flops: float  # per second, what large products reach
    tiles: tuple[tuple[int, int, float], ...]  # rows, columns, and how fast against the largest
    prologue: int
    step_ns: float


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a product is cut up, and what it takes."""

    rows: int
    columns: int
    split: int  # parts of the inner dimension
    blocks: int
    ns: float
    adding_ns: float  # of the kernel that adds the parts up; 0 where there is none


# A smaller tile reads its inputs more often for the same arithmetic.
PLAIN_TILES = ((128, 128, 1.0), (128, 64, 0.96), (64, 64, 0.88), (64, 32, 0.70), (32, 32, 0.50))
TENSOR_TILES = ((256, 128, 1.0), (128, 128, 0.96), (128, 64, 0.85), (64, 64, 0.65), (32, 32, 0.30))
ODD_TILES = 2  # so many of these there are for sizes that cannot be read 16 bytes at a time: H100 trace, 128 x 128


def plain(spec: GpuSpec, share: float | None = None) -> Engine:
    """The ordinary float32 units."""
    found = rates(spec)
    reached = spec.float32_flops_per_s * (found.plain if share is None else share)
    return Engine(reached, PLAIN_TILES, PLAIN_PROLOGUE, STEP_PLAIN_NS * 1500 / spec.sm_clock_mhz)


def tensor(spec: GpuSpec, *, tf32: bool, factor: float = 1.0, odd: bool = False) -> Engine:
    """Tensor cores, in half precision or TF32; the ordinary units where the GPU has none for that."""
    found = rates(spec)
    peak = (spec.tf32_flops_per_s if tf32 else spec.half_flops_per_s) or 0.0
    reached = peak * (found.tf32 if tf32 else found.half) * factor
    usual = plain(spec)
    if reached <= usual.flops * factor:
        return Engine(usual.flops * factor, usual.tiles, usual.prologue, usual.step_ns)
    # A multiply-add of TF32 takes twice the room of one in half precision: half as many fit in a step.
    prologue, step = (found.prologue // 2, found.step_ns * 2) if tf32 else (found.prologue, found.step_ns)
    return Engine(reached, TENSOR_TILES[:ODD_TILES] if odd and not tf32 else TENSOR_TILES, prologue, step)


def tiling(shape: Shape, spec: GpuSpec, engine: Engine, moved: float, *, adds: bool = True) -> Tiling:
    """The fastest of the ways to cut a product up, which is what the libraries' tables are made to find.

    Each multiprocessor works off its blocks; the last, half-empty wave of them takes as long as a full one. `adds`: the
    parts of a split inner dimension are added up by a kernel of their own.
    """
    one = engine.flops / spec.multiprocessors / 1e9  # per ns, of one multiprocessor
    memory_ns = moved / (spec.memory_bytes_per_s * PRODUCT_MEMORY / 1e9)
    fixed_ns = rates(spec).fixed_ns + FIXED_PRODUCT_NS
    best: Tiling | None = None
    for split in SPLITS:
        adding_ns = _adding_ns(shape, spec, split) if adds and split > 1 else 0.0
        # A part of less than the least length takes as long as one of that length.
        steps = max(ceil(shape.inner / split), min(shape.inner, LEAST_SPLIT))
        for height, width, speed in engine.tiles:
            for rows, columns in ((height, width), (width, height)):
                blocks = shape.times * ceil(shape.rows / rows) * ceil(shape.columns / columns) * split
                waves = ceil(blocks / spec.multiprocessors)
                work_ns = waves * 2.0 * rows * columns * (steps + engine.prologue) / (one * speed)
                # Few blocks do not hide the memory's latency behind one another's work.
                ns = fixed_ns + max(work_ns, steps * engine.step_ns, memory_ns)
                if best is None or ns + adding_ns < best.ns + best.adding_ns:
                    best = Tiling(rows, columns, split, blocks, ns, adding_ns)
    assert best is not None
    return best


def _adding_ns(shape: Shape, spec: GpuSpec, split: int) -> float:
    """Float32 parts in, one result out."""
    return pass_ns(4.0 * shape.times * shape.rows * shape.columns * (split + 1), spec, rates(spec).stream)
