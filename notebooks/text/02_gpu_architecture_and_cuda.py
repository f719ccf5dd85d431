# %% [markdown]
# # 02 GPU architecture and CUDA: what do thousands of threads do at once?
#
# On a GPU, most operators of PyTorch run one or more *kernels*: small programs that thousands of threads execute. How threads are grouped, when they wait, and which of them are idle explains most of what a profiler shows later. You run five kernels here, write the important lines of two, and count what their threads do.
#
# It takes 50 minutes and needs no GPU. The kernels use the names of `numba.cuda`, and a simulator runs them thread by thread: with Numba and a GPU, the same code runs there if you change the import to `from numba import cuda`. Times of a GPU come from a virtual one if there is no real one.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("02_gpu_architecture_and_cuda")
L

# %% tags=["setup"]
import time

import numpy as np
import torch

from gpulab.hardware import lookup
from gpulab.lessons import COUNTED, MEASURED, SIMULATED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.kernels.programs import latency, random_reads
from gpulab.lessons.labs.kernels.programs import simulator as cuda
from gpulab.lessons.labs.kernels.programs.launch_record import access_table, array_table
from gpulab.lessons.labs.kernels.programs.occupancy import occupancy
from gpulab.views.charts.drawing import plots

torch.set_num_threads(1)
generator = np.random.default_rng(0)

# %% [markdown]
# ## The symptom
#
# A colleague ported a loop to the GPU. It is correct, and a thousand times slower than he hoped. `add[1, 1]` starts one block of one thread.

# %% tags=["given"]
N = 1000
first, second = generator.random(N, np.float32), generator.random(N, np.float32)


@cuda.jit
def add_in_a_loop(first, second, out):
    for i in range(out.size):
        out[i] = first[i] + second[i]


out = np.zeros(N, np.float32)
launch = add_in_a_loop[1, 1](first, second, out)
print(
    f"{launch.blocks * launch.threads_per_block} thread, {launch.global_memory.requests:,} requests to memory, "
    f"{launch.active_frac:.0%} of the lanes active"
)

# %% [markdown]
# A GPU executes *warps* of 32 threads, one instruction for all of them at a time. Here, 1 of 32 *lanes* works, and each request uses 4 of the 32 bytes that it fetches from memory. All other *multiprocessors* (SMs) of the GPU, 131 on an H100, are idle.

# %% [markdown]
# ## Threads and warps
#
# ### 02.1 Grid, blocks, and a guard
#
# A launch has a *grid* of *blocks*, each with the same number of threads. `cuda.grid(1)` is the number of the running thread in the whole grid. All blocks are complete, so there are usually more threads than elements.

# %% tags=["predict"]
L.predict("guard")


# %% [markdown]
# Write the kernel: one element for each thread, and a guard for the threads beyond the end. Then compute the number of blocks.

# %% tags=["measure"]
@cuda.jit
def add(first, second, out):
    # <blank> the number of this thread; it adds its element if it is within the array
    # was: i = 0
    # was: out[i] = first[i] + second[i]
    i = cuda.grid(1)
    if i < out.size:
        out[i] = first[i] + second[i]
    # </blank>


THREADS = 256
# <blank> as many blocks as N elements need
# was: blocks = 1
blocks = -(-N // THREADS)
# </blank>
total = np.zeros(N, np.float32)
parallel = add[blocks, THREADS](first, second, total)
access_table({"one thread": launch, "one thread per element": parallel})

# %% tags=["same"]
L.same(total, first + second)

# %% tags=["claim"]
idle_threads = blocks * THREADS - parallel.of_array("out").accesses
display(L.reveal("guard", idle_threads))
L.claim(
    "four blocks of 256 threads add 1,000 pairs of numbers with less than a twentieth of the requests to memory; 24 "
    "threads do nothing",
    np.array_equal(total, first + second)
    and idle_threads == 24
    and parallel.global_memory.requests < launch.global_memory.requests / 20,
    before=launch.global_memory.requests,
    after=parallel.global_memory.requests,
    unit="requests",
    source=COUNTED,
)

# %% [markdown]
# Remove the guard and run the cell again: the simulator names the thread that reads outside of the array. A GPU often reports nothing, and destroys other data.
#
# In CUDA C++, the kernel looks much the same: `int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) out[i] = first[i] + second[i];`, started by `add<<<blocks, 256>>>(first, second, out, n)`.
#
# ### 02.2 Divergence: a warp executes both branches
#
# All lanes of a warp execute the same instruction. If an `if` splits a warp, the warp executes both branches one after the other, and lanes of the other branch are idle. Here, even elements need one formula and odd elements another.

# %% tags=["predict"]
L.predict("divergence")


# %% [markdown]
# The kernel stays as it is. Change which thread computes which element: `order[i]` is the element of thread `i`.

# %% tags=["measure"]
@cuda.jit
def two_formulas(order, source, out):
    i = cuda.grid(1)
    if i < order.size:
        element = order[i]
        value = source[element]
        if element % 2 == 0:
            value = value * value
            value = value + 1
            value = value * value
        else:
            value = value + 2
            value = value * value
            value = value + 3
        out[element] = value


SIZE = 256
values = generator.random(SIZE, np.float32)
in_order = np.arange(SIZE)
# <blank> an order with all even elements first, then all odd ones
# was: grouped = np.arange(SIZE)
grouped = np.concatenate([np.arange(0, SIZE, 2), np.arange(1, SIZE, 2)])
# </blank>
mixed_out, grouped_out = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
mixed = two_formulas[2, 128](in_order, values, mixed_out)
sorted_work = two_formulas[2, 128](grouped, values, grouped_out)
orders = {"neighbours": mixed, "grouped": sorted_work}
display(access_table(orders))
print(f"lines that warps execute: {mixed.warp_lines} with neighbours, {sorted_work.warp_lines} grouped")
array_table(orders, "source")

# %% tags=["same"]
L.same(mixed_out, grouped_out)

# %% tags=["claim"]
display(L.reveal("divergence", mixed.active_frac, "%"))
L.claim(
    "grouped by branch, all lanes are active and warps execute at least a quarter less; the price is twice the "
    "sectors of memory for each request to the values",
    sorted_work.active_frac == 1
    and sorted_work.warp_lines <= 0.75 * mixed.warp_lines
    and sorted_work.of_array("source").sectors_per_request == 2 * mixed.of_array("source").sectors_per_request,
    before=100 * mixed.active_frac,
    after=100 * sorted_work.active_frac,
    unit="% of lanes active",
    source=COUNTED,
)

# %% [markdown]
# Whether this pays depends on the length of the branches: a few instructions are cheaper than the scattered reads (notebook [13](13_access_patterns.ipynb)). Compilers replace short branches by *predicated* instructions, or by a select as in `torch.where`. Sort the data itself, once, if a branch is long.

# %% [markdown]
# ## Waiting
#
# ### 02.3 Enough warps to hide the latency
#
# A load from memory takes 400 to 550 clock cycles on recent GPUs: about a quarter of a microsecond, and more under load. A multiprocessor does not wait: it executes another warp that has its data. It needs enough warps for that, or warps that load more at once. *Little's law* says how many bytes must be on their way.

# %% tags=["predict"]
L.predict("little")

# %% [markdown]
# One multiprocessor of an H100 gets 25 bytes per nanosecond (3,350 GB/s, divided by 132). Assume a latency of 400 ns. Write Little's law: how many bytes must be in flight? Each warp loads 128 bytes and then waits, so the cell divides by 128 to get the number of warps. A simulation of the loads checks it.

# %% tags=["measure"]
LATENCY_NS, BYTES_PER_NS, MAX_WARPS = 400, 25, 64


def bytes_in_flight(latency_ns, bytes_per_ns):
    # <blank> Little's law: bytes in flight = latency x bandwidth
    # was: return latency.WARP_LOAD_BYTES
    return latency_ns * bytes_per_ns
    # </blank>


def reached(warps, loads_per_warp=1):
    """Return the share of the bandwidth that this number of warps reaches, in percent."""
    simulated = latency.simulated_bandwidth(
        warps, latency_ns=LATENCY_NS, bytes_per_ns=BYTES_PER_NS, loads_per_warp=loads_per_warp
    )
    return 100 * simulated / BYTES_PER_NS


needed_warps = bytes_in_flight(LATENCY_NS, BYTES_PER_NS) / latency.WARP_LOAD_BYTES
print(f"{needed_warps:.0f} warps are needed by formula; {MAX_WARPS} fit on a multiprocessor")
warp_counts = (1, 2, 4, 8, 16, 32, 64)
plots.line_plot(
    "With one load for each warp, even 64 warps are too few",
    {f"{loads} per warp": {warps: reached(warps, loads) for warps in warp_counts} for loads in (1, 2, 4)},
    x="resident warps",
    y="% of the bandwidth",
    source=SIMULATED,
    log_x=True,
)

# %% tags=["claim"]
display(L.reveal("little", reached(MAX_WARPS), "percent of the bandwidth"))
L.claim(
    "the number of warps by Little's law reaches more than 90 % of the bandwidth, half as many reach half of it; 64 "
    "warps reach all of it only with two loads in flight each",
    reached(round(needed_warps)) > 90
    and 45 < reached(round(needed_warps / 2)) < 55
    and reached(MAX_WARPS) < 90
    and reached(MAX_WARPS, 2) > 99,
    before=reached(MAX_WARPS),
    after=reached(MAX_WARPS, 2),
    unit="% of the bandwidth",
    source=SIMULATED,
)

# %% [markdown]
# This is why fast kernels load four numbers at once (`float4`), unroll loops, or copy tiles asynchronously: more bytes in flight for each warp. It is also why a small batch uses only a part of the bandwidth: there are not enough warps.
#
# ### 02.4 Occupancy: what limits the number of warps
#
# *Occupancy* is the share of warp places that are taken. A multiprocessor has 65,536 registers, shared memory, and places for 64 warps and 32 blocks (Hopper). Whatever is used up first limits the occupancy. This kernel uses 80 registers for each thread.

# %% tags=["predict"]
L.predict("registers")

# %% [markdown]
# Write how many warps fit by registers alone. `occupancy` applies all limits.

# %% tags=["measure"]
REGISTERS = 80


def warps_by_registers(registers):
    """Return how many warps of 32 threads the registers of a multiprocessor are enough for."""
    # <blank> 65,536 registers; a warp has 32 threads
    # was: return 64
    return 65_536 // (32 * registers)
    # </blank>


shares = {threads: 100 * occupancy(threads, registers=REGISTERS).frac for threads in (32, 64, 128, 256, 512)}
few = {threads: 100 * occupancy(threads, registers=32).frac for threads in shares}
for threads in shares:
    print(
        f"{threads:5} threads per block: {shares[threads]:.0f} %, limited by {occupancy(threads, registers=80).limit}"
    )
plots.line_plot(
    "With 80 registers per thread, every block size stays below 50 %",
    {"80 registers": shares, "32 registers": few},
    x="threads per block",
    y="occupancy, %",
    source=COUNTED,
    log_x=True,
)

# %% tags=["claim"]
by_registers = warps_by_registers(REGISTERS)
display(L.reveal("registers", max(shares.values()) / 100, "%"))
L.claim(
    "with 80 registers per thread, no block size reaches an occupancy of 50 %: the registers are enough for 25 warps, "
    "and warps are placed in groups of four, so 24 are resident",
    by_registers == 25 and max(occupancy(threads, registers=80).warps for threads in shares) == 24,
    before=max(few.values()),
    after=max(shares.values()),
    unit="% occupancy",
    source=COUNTED,
)

# %% [markdown]
# A block of 1,024 threads would need 81,920 registers: such a launch fails with *too many resources requested for launch*.
#
# Traces of `torch.profiler` contain this number as *est. achieved occupancy*: it is calculated, not measured, and it is also limited by the number of blocks in the grid. High occupancy is a means, not a goal: matrix products run at full speed with 12 to 25 %, because each of their warps has many instructions and loads in flight.

# %% [markdown]
# ## Exercise: a filter
#
# ### 02.5 Shared and constant memory
#
# A filter of 9 weights slides over 256 numbers. The naive kernel reads 9 numbers and 9 weights from global memory for each result, although neighbouring threads read almost the same. *Shared memory* is fast memory of a block: each number is loaded once, and then read by all threads. *Constant memory* has a cache that delivers one value to all threads of a warp at once.

# %% tags=["given"]
WEIGHTS = np.array([1, 8, 28, 56, 70, 56, 28, 8, 1], np.float32) / 256
RADIUS, BLOCK = 4, 64
BORDERED = BLOCK + 2 * RADIUS  # a block and its border; the size of a shared array has to be a constant
signal = generator.random(256 + 2 * RADIUS, np.float32)  # with a border of 4 on both sides


@cuda.jit
def filter_naive(signal, weights, out):
    i = cuda.grid(1)
    total = 0.0
    for k in range(9):
        total += signal[i + k] * weights[k]
    out[i] = total


naive_out = np.zeros(256, np.float32)
naive = filter_naive[256 // BLOCK, BLOCK](signal, WEIGHTS, naive_out)
print(f"{naive.global_memory.loads:,} loads from global memory")

# %% [markdown]
# Fill in two lines. The block needs 64 + 2 * 4 numbers: each thread loads one, and the first 8 threads load one more. `cuda.syncthreads()` waits until all have done so.

# %% tags=["predict"]
L.predict("barrier")


# %% tags=["exercise"]
@cuda.jit
def filter_shared(signal, weights, out):
    tile = cuda.shared.array(BORDERED, cuda.float32)
    table = cuda.const.array_like(WEIGHTS)
    i, lane = cuda.grid(1), cuda.threadIdx.x
    tile[lane] = signal[i]
    if lane < 2 * RADIUS:
        tile[BLOCK + lane] = signal[i + BLOCK]
    # <blank> wait for the tile
    # was: pass
    cuda.syncthreads()
    # </blank>
    total = 0.0
    for k in range(9):
        # <blank> the same product, from `tile` and `table`
        # was: total += signal[i + k] * weights[k]
        total += tile[lane + k] * table[k]
        # </blank>
    out[i] = total


shared_out = np.zeros(256, np.float32)
shared = filter_shared[256 // BLOCK, BLOCK](signal, WEIGHTS, shared_out)
display(access_table({"naive": naive, "shared": shared}))
is_right = np.allclose(shared_out, naive_out, rtol=1e-6)
L.score("loads", shared.global_memory.loads if is_right else None)

# %% tags=["claim"]
display(L.reveal("barrier"), L.same(naive_out, shared_out, 1e-6))
L.claim(
    "with shared and constant memory, a block reads each number once: 288 loads from global memory instead of 4,608, "
    "without a bank conflict",
    is_right and shared.global_memory.loads == 288 and shared.shared_memory.conflicts == 0,
    before=naive.global_memory.loads,
    after=shared.global_memory.loads,
    unit="loads",
    source=COUNTED,
)

# %% [markdown]
# The caches of a GPU soften the naive version: most of its loads hit the L1 cache. They still take time in the load/store units. In Triton, you write such kernels by tiles instead of threads, and the compiler manages shared memory and barriers (notebook [12](12_launch_fusion_graphs.ipynb)).

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 02.6 From which size on is the GPU faster, copies included?
#
# Before a GPU can compute, its data has to get there, and the result has to come back. Multiply two matrices of n x n on the CPU (measured here, one thread) and on a GPU, including the copies.

# %% tags=["predict"]
L.predict("crossover")

# %% tags=["measure"]
SIDES = (32, 64, 128, 256, 512, 1024)


def cpu_ms(side):
    matrix = torch.randn(side, side)
    durations = []
    for _ in range(5):
        begin = time.perf_counter()
        matrix @ matrix
        durations.append(1e3 * (time.perf_counter() - begin))
    return min(durations)


def gpu_ms(side):
    """Return the time from the first copy to the GPU to the end of the copy back."""
    name = f"product {side}"
    with L.gpu(name):
        left, right = torch.ones(side, side), torch.ones(side, side)
        # <blank> copy both to "cuda", multiply, and copy the product to "cpu"
        # was: left @ right
        (left.to("cuda") @ right.to("cuda")).to("cpu")
        # </blank>
    events = gpulab.runs[name].events
    work = events[events["kind"].isin(["memcpy", "kernel"])]
    is_complete = (work["kind"] == "kernel").any() and work["name"].str.contains("DtoH").any()
    return float(((work["start_ns"] + work["dur_ns"]).max() - work["start_ns"].min()) / 1e6) if is_complete else 0.0


on_cpu, on_gpu = {side: cpu_ms(side) for side in SIDES}, {side: gpu_ms(side) for side in SIDES}
plots.line_plot(
    "Time of an n x n product",
    {"CPU, one thread (measured)": on_cpu, "GPU with copies": on_gpu} if on_gpu[32] else {"CPU (measured)": on_cpu},
    x="n",
    y="ms",
    source=gpulab.runs["product 1024"],
    log_x=True,
    log_y=True,
)

# %% tags=["claim"]
crossover = next((side for side in SIDES if on_gpu[side] < on_cpu[side]), 2048)
display(L.reveal("crossover", crossover, "n"))
L.claim(
    "with copies, the product of 32 x 32 matrices is faster on the CPU, that of 1024 x 1024 matrices on the GPU",
    on_gpu[32] > on_cpu[32] and 0 < on_gpu[1024] < on_cpu[1024],
    before=on_cpu[1024],
    after=on_gpu[1024],
    unit="ms",
    source=gpulab.runs["product 1024"],
)

# %% [markdown]
# A product of n x n matrices computes 2n^3 operations on 3n^2 numbers: the larger n, the more work for each copied byte. Adding two vectors is one operation for three numbers: the copies take about as long as the addition on the CPU, or longer, at any size. So keep data on the GPU, and send it there once.
#
# ### 02.7 Near and far memory
#
# The closer a memory is to the cores, the smaller and faster it is. A GPU has registers, shared memory and L1 in each multiprocessor, a common L2, and then its main memory. Your CPU has similar levels. Read arrays of growing size at random places.

# %% tags=["predict"]
L.predict("random")

# %% tags=["measure"]
# <blank> the sizes 2**14, 2**17, 2**20, 2**23, 2**26 and 2**28 bytes
# was: sizes = [2**14]
sizes = [2**n for n in (14, 17, 20, 23, 26, 28)]
# </blank>
read_ns = {size: random_reads.random_read_ns(size) for size in sizes}
plots.line_plot(
    "Random reads take longer once the data no longer fits in a cache",
    {"one read": {size / 2**20: duration for size, duration in read_ns.items()}},
    x="MiB of data",
    y="ns",
    source=MEASURED,
    log_x=True,
)

# %% tags=["claim"]
slowdown = read_ns[sizes[-1]] / read_ns[sizes[0]]
display(L.reveal("random", slowdown, "x"))
L.claim(
    "a random read from 256 MiB takes at least 1.5 times as long as from 16 KiB, although the CPU overlaps many reads",
    slowdown >= 1.5,
    before=read_ns[sizes[0]],
    after=read_ns[sizes[-1]],
    unit="ns per read",
    source=MEASURED,
)

# %% [markdown]
# ### 02.8 CPU and GPU in numbers
#
# A CPU core is built to finish one thread quickly: large caches, branch prediction, out-of-order execution. A GPU is built to finish many threads, and hides waiting by switching between them. Compute how many threads an H100 (132 multiprocessors, 64 warps each) holds at once.

# %% tags=["exercise"]
# <blank> threads that are resident at once on an H100
# was: resident_threads = None
resident_threads = 132 * 64 * 32
# </blank>
display(L.check("threads", resident_threads))
tables.table_view(
    ("", "a CPU core", "an H100 multiprocessor"),
    [
        ("threads that are resident", "1 or 2", "2,048"),
        ("hides a load from memory by", "out-of-order execution, prefetching", "executing other warps"),
        ("registers", "a few hundred", "65,536"),
        ("a branch", "is predicted", "can split a warp"),
    ],
    left=3,
)

# %% [markdown]
# Old comparisons say that a GPU's cache has kilobytes. That is true of L1, not of L2, which all multiprocessors share. Some lists of a GPU's parts also name *RT cores*. They trace rays for graphics: a T4, an A10 and an L4 have them, a V100, an A100, an H100 and a B200 have none, and training uses none. The next cell reads the figures from gpulab's table of GPUs.

# %% tags=["given"]
specs = [lookup.resolve(name) for name in ("t4", "v100", "a100-80", "h100")]
tables.table_view(
    ("GPU", "L2 cache, MiB", "highest clock, MHz", "multiprocessors"),
    [(s.name, f"{s.l2_bytes / 2**20:.0f}", f"{s.sm_clock_mhz:,}", f"{s.multiprocessors}") for s in specs],
    below="From NVIDIA's data sheets and white papers, except the clock of the H100, which is not published there.",
)

# %% [markdown]
# ### 02.9 Streams: copy in, compute, copy out
#
# A GPU has separate engines for copies to the GPU, for kernels, and for copies back. In one *stream*, they work one after the other. In several streams, they work on several chunks at once.

# %% tags=["measure"]
ROWS, SIDE, CHUNKS = 16_384, 4096, 8
# <blank> three streams
# was: stream_count = 1
stream_count = 3
# </blank>


def multiply_in_chunks(name, count):
    """Return the time from the first copy to the end of the last one, in ms."""
    with L.gpu(name):
        weight = torch.ones(SIDE, SIDE, device="cuda")
        source, target = torch.ones(ROWS, SIDE).pin_memory(), torch.ones(ROWS, SIDE).pin_memory()
        streams = [torch.cuda.Stream() for _ in range(count)]
        torch.cuda.synchronize()
        for k, (rows, result) in enumerate(zip(source.chunk(CHUNKS), target.chunk(CHUNKS), strict=True)):
            with torch.cuda.stream(streams[k % count]):
                result.copy_(rows.to("cuda", non_blocking=True) @ weight, non_blocking=True)
        torch.cuda.synchronize()
    copies = gpulab.runs[name].events
    copies = copies[copies["name"].str.contains("Pinned")]
    return float(((copies["start_ns"] + copies["dur_ns"]).max() - copies["start_ns"].min()) / 1e6)


one_ms, several_ms = multiply_in_chunks("one stream", 1), multiply_in_chunks("streams", stream_count)
print(f"one stream {one_ms:.1f} ms, {stream_count} streams {several_ms:.1f} ms")

# %% tags=["claim"]
L.claim(
    "three streams overlap the copies in, the products and the copies out: at least a quarter less time",
    several_ms < 0.75 * one_ms,
    before=one_ms,
    after=several_ms,
    unit="ms",
    source=gpulab.runs["streams"],
)

# %% [markdown]
# This needs pinned memory, `non_blocking=True`, and a stream for each chunk that is in flight. Without the first two, the copies block the host; in one stream, the GPU works in order. In both cases, nothing overlaps (notebook [07](07_host_to_device.ipynb)).

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "c"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# Give a GPU many warps, and let the 32 lanes of a warp do the same. A kernel waits for memory most of the time: it needs bytes in flight, from many warps or from many loads of each warp. Occupancy says how many warps there are; it is a means, and full speed does not always need it. Move data to the GPU once, and read it from memory once.

# %% tags=["card"]
L.card()
