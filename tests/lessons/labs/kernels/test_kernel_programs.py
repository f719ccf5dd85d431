"""Lessons 02 and 13: the simulator of CUDA kernels, what it counts, occupancy and latency."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpulab import GpulabError
from gpulab.lessons.labs.kernels.programs import latency, random_reads
from gpulab.lessons.labs.kernels.programs import simulator as cuda
from gpulab.lessons.labs.kernels.programs.launch_record import Launch, Traffic, access_table, array_table
from gpulab.lessons.labs.kernels.programs.occupancy import LIMITS, occupancy


@cuda.jit
def add(first, second, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = first[i] + second[i]


@cuda.jit
def copy_with_stride(source, out, stride):
    i = cuda.grid(1)
    out[i] = source[i * stride]


def floats(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(count, np.float32)


@pytest.mark.parametrize(("count", "blocks", "threads"), [(100, 4, 32), (1, 1, 1), (256, 2, 128), (1000, 8, 128)])
def test_a_guarded_kernel_computes_every_element_once(count, blocks, threads):
    first, second, out = floats(count), floats(count, 1), np.zeros(count, np.float32)
    launch = add[blocks, threads](first, second, out)
    assert np.array_equal(out, first + second)
    assert launch.of_array("out").accesses == count
    assert launch.global_memory.loads == 2 * count


def test_an_access_outside_of_an_array_is_an_error_that_names_the_thread():
    with pytest.raises(IndexError, match=r"source\[4\].*block \(0, 0, 0\), thread \(4, 0, 0\)"):
        copy_with_stride[1, 8](floats(4), np.zeros(8, np.float32), 1)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 7, 8, 16, 32])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_a_strided_load_moves_the_sectors_that_its_bytes_lie_in(stride, dtype):
    source, out = np.zeros(32 * stride, dtype), np.zeros(32, dtype)
    launch = copy_with_stride[1, 32](source, out, stride)
    touched = np.unique(np.arange(32 * stride * source.itemsize).reshape(-1, source.itemsize)[::stride] // 32)
    assert launch.of_array("source").sectors == len(touched)
    assert launch.of_array("source").requests == 1
    assert launch.of_array("out").sectors == source.itemsize


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 9])
def test_a_view_that_begins_at_an_odd_place_moves_one_sector_more(offset):
    source = np.zeros(64, np.float32)[offset : offset + 32]
    launch = copy_with_stride[1, 32](source, np.zeros(32, np.float32), 1)
    assert launch.of_array("source").sectors == (4 if offset % 8 == 0 else 5)


def test_a_value_that_all_lanes_read_is_one_sector():
    @cuda.jit
    def spread(source, out):
        out[cuda.grid(1)] = source[0]

    traffic = spread[1, 32](floats(8), np.zeros(32, np.float32)).of_array("source")
    assert (traffic.sectors, traffic.useful_bytes, traffic.accesses) == (1, 4, 32)


@pytest.mark.parametrize(("width", "conflicts"), [(32, 31), (33, 0), (34, 1), (36, 3), (40, 7)])
def test_a_column_of_shared_memory_has_conflicts_by_its_row_length(width, conflicts):
    @cuda.jit
    def read_column(out):
        tile = cuda.shared.array((32, width), cuda.float32)
        row = cuda.threadIdx.x
        tile[row, 0] = row
        cuda.syncthreads()
        out[row] = tile[row, 0]

    out = np.zeros(32, np.float32)
    launch = read_column[1, 32](out)
    assert np.array_equal(out, np.arange(32))
    assert launch.shared_memory.conflicts == 2 * conflicts  # one store and one load
    assert launch.shared_bytes == 32 * width * 4


def test_constant_memory_gives_one_different_word_at_a_time():
    values = np.arange(32, dtype=np.float32)

    @cuda.jit
    def read(out, is_spread):
        table = cuda.const.array_like(values)
        i = cuda.grid(1)
        out[i] = table[i if is_spread else 5]

    assert read[1, 32](np.zeros(32, np.float32), False).constant_memory.conflicts == 0
    assert read[1, 32](np.zeros(32, np.float32), True).constant_memory.conflicts == 31


def test_lanes_that_branch_apart_idle_and_warps_that_branch_as_one_do_not():
    @cuda.jit
    def branch(out, by_warp):
        i = cuda.grid(1)
        if (i // 32 if by_warp else i) % 2:
            out[i] = 1
            out[i] = 2
            out[i] = 3
        else:
            out[i] = 4
            out[i] = 5
            out[i] = 6

    by_lane, by_warp = (branch[1, 64](np.zeros(64, np.float32), flag) for flag in (False, True))
    assert by_warp.active_frac == 1
    assert by_lane.warp_lines == 2 * (2 + 3 + 3)  # two warps: two common lines, and both branches of three
    assert by_warp.warp_lines == 2 * (2 + 3)
    assert by_lane.active_frac == pytest.approx((2 * 32 + 6 * 16) / (8 * 32))


def test_a_block_sum_needs_its_barriers():
    def summed(with_barrier):
        if with_barrier:

            @cuda.jit
            def reduce(source, out):
                part = cuda.shared.array(64, cuda.float32)
                i, lane = cuda.grid(1), cuda.threadIdx.x
                part[lane] = source[i]
                cuda.syncthreads()
                step = 32
                while step:
                    if lane < step:
                        part[lane] += part[lane + step]
                    cuda.syncthreads()
                    step //= 2
                if lane == 0:
                    out[cuda.blockIdx.x] = part[0]
        else:

            @cuda.jit
            def reduce(source, out):
                part = cuda.shared.array(64, cuda.float32)
                i, lane = cuda.grid(1), cuda.threadIdx.x
                part[lane] = source[i]
                step = 32
                while step:
                    if lane < step:
                        part[lane] += part[lane + step]
                    step //= 2
                if lane == 0:
                    out[cuda.blockIdx.x] = part[0]

        source, out = floats(256), np.zeros(4, np.float32)
        reduce[4, 64](source, out)
        return out, source.reshape(4, 64).sum(axis=1)

    assert np.allclose(*summed(True))
    assert not np.allclose(*summed(False))


def test_a_barrier_that_only_some_threads_reach_does_not_hang():
    @cuda.jit
    def half(out):
        if cuda.threadIdx.x < 16:
            cuda.syncthreads()
            out[cuda.threadIdx.x] = 1
        else:
            out[cuda.threadIdx.x] = 2
            cuda.syncthreads()

    with pytest.raises(GpulabError, match="waits forever"):
        half[1, 32](np.zeros(32, np.float32))


def test_an_error_of_one_thread_ends_the_others():
    @cuda.jit
    def fail(out):
        cuda.syncthreads()
        out[cuda.threadIdx.x + 1] = 1

    with pytest.raises(IndexError):
        fail[1, 32](np.zeros(32, np.float32))


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_grid_numbers_every_thread_once(dimensions):
    shape = (6, 4, 2)[:dimensions]
    counts = np.zeros(shape, np.int32)

    @cuda.jit
    def count(counts):
        place = cuda.grid(counts.ndim)
        counts[place] += 1

    count[tuple(length // 2 for length in shape), (2,) * dimensions](counts)
    assert (counts == 1).all()


def test_a_grid_stride_loop_visits_every_element():
    out = np.zeros(1000, np.float32)

    @cuda.jit
    def fill(out):
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            out[i] += 1

    fill[4, 32](out)
    assert (out == 1).all()


@pytest.mark.parametrize(("blocks", "threads"), [(1, 2048), (1 << 20, 1024), (0, 32)])
def test_a_launch_that_is_too_large_is_refused(blocks, threads):
    with pytest.raises(GpulabError):
        add[blocks, threads](floats(1), floats(1), floats(1))


def test_a_kernel_is_not_a_function_and_its_names_exist_only_inside():
    with pytest.raises(GpulabError, match="launch configuration"):
        add(floats(1), floats(1), floats(1))
    with pytest.raises(GpulabError, match="No kernel is running"):
        cuda.grid(1)


def test_blocks_that_are_no_whole_number_are_refused_with_the_way_to_round():
    with pytest.raises(GpulabError, match=r"(?s)not 3\.9.*elements // threads_per_block"):
        add[1000 / 256, 256](floats(1000), floats(1000), floats(1000))


@pytest.mark.parametrize("value", [[1.0, 2.0], "text", None])
def test_an_argument_that_is_neither_array_nor_number_is_refused_by_name(value):
    with pytest.raises(GpulabError, match="first"):
        add[1, 32](value, floats(1), floats(1))


@pytest.mark.parametrize("index", ["values[0]", "values[:2, 1]", "values[0, 1, 2]"])
def test_a_thread_reads_single_numbers(index):
    namespace = {"cuda": cuda}
    exec(f"def read(values, out):\n    out[0] = {index}", namespace)
    with pytest.raises(IndexError, match=r"write values\[i, j\]"):
        cuda.jit(namespace["read"])[1, 1](np.zeros((2, 3), np.float32), np.zeros(1, np.float32))


def test_an_empty_record_has_no_traffic():
    assert Traffic().sectors_per_request == 0
    empty = Launch(blocks=1, threads_per_block=1, by_array={}, active_frac=1.0, warp_lines=0, shared_bytes=0)
    assert "bytes used" in access_table({"empty": empty}).__repr__()
    assert "values 0 0 0.0" in " ".join(array_table({"empty": empty}, "values").__repr__().split())


_PROGRAM = """
import json, sys
import numpy as np
if sys.argv[1] == "numba":
    from numba import cuda, float32
else:
    from gpulab.lessons.labs.kernels.programs import simulator as cuda
    float32 = cuda.float32

@cuda.jit
def transpose(source, out):
    tile = cuda.shared.array((16, 17), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    if x < source.shape[1] and y < source.shape[0]:
        tile[ty, tx] = source[y, x]
    cuda.syncthreads()
    x = cuda.blockIdx.y * cuda.blockDim.y + tx
    y = cuda.blockIdx.x * cuda.blockDim.x + ty
    if x < out.shape[1] and y < out.shape[0]:
        out[y, x] = tile[tx, ty]

@cuda.jit
def block_sum(source, out):
    part = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    total = 0.0
    for i in range(cuda.grid(1), source.size, cuda.gridsize(1)):
        total += source[i]
    part[lane] = total
    cuda.syncthreads()
    step = 16
    while step > 0:
        if lane < step:
            part[lane] += part[lane + step]
        cuda.syncthreads()
        step //= 2
    if lane == 0:
        out[cuda.blockIdx.x] = part[0]

source = np.random.default_rng(3).random((40, 50)).astype(np.float32)
out, sums = np.zeros((50, 40), np.float32), np.zeros(3, np.float32)
transpose[(4, 3), (16, 16)](source, out)
block_sum[3, 32](source.ravel(), sums)
print(json.dumps([out.tolist(), sums.tolist()]))
"""


def test_the_same_kernels_give_the_same_results_in_numbas_simulator():
    pytest.importorskip("numba", reason="Numba's CUDA simulator is the reference")
    results = {}
    for name in ("numba", "gpulab"):
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, name],
            env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        results[name] = json.loads(done.stdout)
    assert results["gpulab"] == results["numba"]


TRACES = Path(os.environ.get("GPULAB_SHARED", "../shared")) / "traces"


@pytest.mark.parametrize(
    "name", ["v100_ns_resolution", "a100_ddp_8ranks_rank", "h100_timesformer_inference", "b200_eager"]
)
def test_occupancy_is_that_of_kineto_on_four_generations(name):
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not here")
    with gzip.open(path) as file:
        trace = json.load(file)
    device = trace["deviceProperties"][0]
    capability = f"{device['computeMajor']}.{device['computeMinor']}"
    differences = []
    for event in trace["traceEvents"]:
        arguments = event.get("args", {})
        # Kineto does not ask for more than 48 KiB of shared memory per block, and then says 0.
        if arguments.get("shared memory", 1 << 20) > 48 * 1024 or "est. achieved occupancy %" not in arguments:
            continue
        threads = int(np.prod(arguments["block"]))
        result = occupancy(
            threads,
            registers=arguments["registers per thread"],
            shared_bytes=arguments["shared memory"],
            capability=capability,
        )
        max_threads = 32 * result.warps / result.frac
        blocks = min(result.blocks, np.prod(arguments["grid"]) / device["numSms"])
        differences.append(abs(100 * blocks * threads / max_threads - arguments["est. achieved occupancy %"]))
    assert len(differences) > 300
    assert max(differences) <= 1.01


@pytest.mark.parametrize(
    ("threads", "registers", "shared_kib", "limit", "warps"),
    [
        (32, 32, 0, "blocks", 32),
        (256, 32, 0, "warps", 64),
        (1024, 64, 0, "registers", 32),
        (128, 32, 100, "shared memory", 8),
        (768, 32, 0, "warps", 48),
    ],
)
def test_what_limits_occupancy_on_hopper(threads, registers, shared_kib, limit, warps):
    result = occupancy(threads, registers=registers, shared_bytes=shared_kib * 1024)
    assert (result.limit, result.warps) == (limit, warps)


def test_impossible_occupancies_are_errors():
    with pytest.raises(GpulabError, match=r"6\.1"):
        occupancy(32, capability="6.1")
    with pytest.raises(GpulabError, match="shared memory"):
        occupancy(32, shared_bytes=300 * 1024)
    assert "9.0" in LIMITS


@pytest.mark.parametrize("warps", [1, 7, 32, 64, 200])
def test_bandwidth_follows_littles_law(warps):
    expected = min(warps * 128 / 500, 25)
    assert latency.simulated_bandwidth(warps, latency_ns=500, bytes_per_ns=25) == pytest.approx(expected, rel=0.02)


def test_the_bytes_that_must_be_in_flight_are_latency_times_bandwidth():
    needed = latency.needed_bytes(500, 25)
    warps = round(needed / 128)
    assert latency.simulated_bandwidth(warps, latency_ns=500, bytes_per_ns=25) > 0.95 * 25
    assert latency.simulated_bandwidth(warps // 2, latency_ns=500, bytes_per_ns=25) < 0.55 * 25


def test_a_random_read_takes_some_time():
    assert 0 < random_reads.random_read_ns(4096, repeats=1) < 1e6
