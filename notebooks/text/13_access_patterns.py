# %% [markdown]
# # 13 Access patterns: which bytes does a warp fetch, and which does it use?
#
# Most kernels of a training step wait for memory, not for arithmetic. How long they wait depends on the bytes that move, and these depend on the *order* in which threads read. A profiler shows this as *sectors per request* and *bank conflicts*. You write kernels whose result is the same, and count both.
#
# It takes 45 minutes and needs no GPU. The kernels run in the simulator of notebook [02](02_gpu_architecture_and_cuda.ipynb); one experiment measures the caches of your CPU, and one records the copies that PyTorch makes.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("13_access_patterns")
L

# %% tags=["setup"]
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gpulab.lessons import COUNTED, MEASURED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.kernels.programs import simulator as cuda
from gpulab.lessons.labs.kernels.programs.launch_record import access_table, array_table
from gpulab.views.charts.drawing import plots

torch.set_num_threads(1)
generator = np.random.default_rng(0)


# %% [markdown]
# ## The symptom
#
# This kernel copies one column of a matrix with 64 columns. For such a kernel, Nsight Compute warns: *"On average, only 4.0 of the 32 bytes transmitted per sector are utilized by each thread"*, and lists *uncoalesced global accesses*.

# %% tags=["given"]
@cuda.jit
def copy_column(matrix, out):
    i = cuda.grid(1)
    out[i] = matrix[i, 0]


matrix, column = generator.random((256, 64), np.float32), np.zeros(256, np.float32)
symptom = copy_column[2, 128](matrix, column)
print(
    f"{symptom.of_array('matrix').sectors_per_request:.0f} sectors per request, "
    f"{symptom.of_array('matrix').useful_frac:.1%} of the bytes used"
)

# %% [markdown]
# A GPU fetches memory in *sectors* of 32 bytes. When the 32 threads of a warp load 32 neighbouring float32 numbers, that is one request for 128 bytes, or 4 sectors: the loads are *coalesced*. When each thread needs a number from another row, it is 32 sectors for the same 128 bytes.

# %% [markdown]
# ## Global memory
#
# ### 13.1 Stride
#
# Thread `i` reads element `i * stride`. Write the kernel, and look at the sectors for strides from 1 to 32.

# %% tags=["predict"]
L.predict("stride")


# %% tags=["measure"]
@cuda.jit
def read_with_stride(source, out, stride):
    i = cuda.grid(1)
    # <blank> thread i copies element i * stride of the source to element i
    # was: out[i] = source[i]
    out[i] = source[i * stride]
    # </blank>


STRIDES = (1, 2, 4, 8, 16, 32)
source = generator.random(128 * 32, np.float32)
by_stride = {}
for stride in STRIDES:
    picked = np.zeros(128, np.float32)
    launch = read_with_stride[1, 128](source, picked, stride)
    by_stride[stride] = launch.of_array("source").sectors_per_request
plots.line_plot(
    f"Sectors per request: {by_stride[1]:.0f} with stride 1, {by_stride[32]:.0f} with stride 32",
    {"sectors per request": by_stride},
    x="stride, float32 numbers",
    y="sectors per request",
    source=COUNTED,
    log_x=True,
)

# %% tags=["claim"]
display(L.reveal("stride", by_stride[32]))
L.claim(
    "a warp needs 4 sectors for neighbouring numbers, 8 with stride 2, and 32 from stride 8 on, for the same bytes",
    by_stride == {1: 4, 2: 8, 4: 16, 8: 32, 16: 32, 32: 32} and np.array_equal(picked, source[::32]),
    before=by_stride[32],
    after=by_stride[1],
    unit="sectors per request",
    source=COUNTED,
)

# %% [markdown]
# A CPU fetches memory in *cache lines*, usually of 64 bytes, so the same happens here. The next cell sums the same number of elements with each stride, measured on your CPU. From a stride of 16 numbers on, each one is in a line of its own. These lines are 32 MiB instead of 2, so most of them come from memory or from a larger, slower cache. Still larger strides touch more *pages*, so that prefetching and address translation help less, too.

# %% tags=["measure"]
COUNT = 1 << 19
numbers = np.ones(COUNT * 64, np.float32)


def shortest_ns(code, repeats=9):
    """Return the shortest duration of `code`, in ns: other programs can only make it longer."""
    durations = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        code()
        durations.append(time.perf_counter_ns() - begin)
    return min(durations)


cpu_ns = {stride: shortest_ns(numbers[: COUNT * stride : stride].sum) / COUNT for stride in (1, 2, 4, 8, 16, 32, 64)}
plots.line_plot(
    "On a CPU, too, numbers far apart take longer",
    {"one number": cpu_ns},
    x="stride, float32 numbers",
    y="ns",
    source=MEASURED,
    log_x=True,
)

# %% [markdown]
# ### 13.2 Array of structs, or struct of arrays
#
# A particle has eight values. Stored one particle after the other (*array of structs*, AoS), the `x` of two neighbours are 32 bytes apart. Stored as eight arrays (*struct of arrays*, SoA), they are neighbours. In PyTorch, that is the difference between a tensor of shape (particles, 8) and one of shape (8, particles).

# %% tags=["predict"]
L.predict("structs")


# %% tags=["measure"]
@cuda.jit
def move_structs(particles, out):
    i = cuda.grid(1)
    out[i] = particles[i, 0] + 0.1 * particles[i, 3]


@cuda.jit
def move_arrays(particles, out):
    i = cuda.grid(1)
    # <blank> the same, for particles of shape (8, count)
    # was: out[i] = 0
    out[i] = particles[0, i] + 0.1 * particles[3, i]
    # </blank>


structs = generator.random((128, 8), np.float32)
arrays = np.ascontiguousarray(structs.T)
out_structs, out_arrays = np.zeros(128, np.float32), np.zeros(128, np.float32)
aos, soa = move_structs[1, 128](structs, out_structs), move_arrays[1, 128](arrays, out_arrays)
layouts = {"array of structs": aos, "struct of arrays": soa}
display(access_table(layouts))
array_table(layouts, "particles")

# %% tags=["same"]
L.same(out_structs, out_arrays)

# %% tags=["claim"]
ratio = aos.of_array("particles").sectors / max(1, soa.of_array("particles").sectors)
display(L.reveal("structs", ratio, "x"))
L.claim(
    "to read two of eight values, a kernel requests eight times as many sectors from an array of structs as from a "
    "struct of arrays",
    np.array_equal(out_structs, out_arrays) and ratio == 8,
    before=aos.of_array("particles").sectors,
    after=soa.of_array("particles").sectors,
    unit="sectors",
    source=COUNTED,
)

# %% [markdown]
# Both reads of a particle lie in the same 32 bytes, so the cache serves the second one; even then, the array of structs moves four times as much. A kernel that uses all eight values of a particle loses nothing.

# %% [markdown]
# ## Shared memory
#
# ### 13.3 Transpose: naive, tiled, padded
#
# A transpose reads rows and writes columns. One of the two is always strided, unless a block first loads a *tile* into shared memory, and then writes it in the other order. But shared memory has 32 *banks*: word `n` lies in bank `n % 32`, and a bank gives one word at a time. A column of a 32 x 32 tile lies in one bank.

# %% tags=["predict"]
L.predict("banks")


# %% tags=["measure"]
@cuda.jit
def transpose_naive(source, out):
    x, y = cuda.grid(2)
    out[x, y] = source[y, x]


def make_tiled(tile_width):
    """Return a kernel that transposes by tiles of 32 x 32, whose rows are `tile_width` numbers long."""

    @cuda.jit
    def transpose_tiled(source, out):
        tile = cuda.shared.array((32, tile_width), cuda.float32)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        tile[ty, tx] = source[y, x]
        cuda.syncthreads()
        # <blank> element [ty, tx] of the output tile, which lies at (blockIdx.x, blockIdx.y) * 32
        # was: out[x, y] = source[y, x]
        out[cuda.blockIdx.x * 32 + ty, cuda.blockIdx.y * 32 + tx] = tile[tx, ty]
        # </blank>

    return transpose_tiled


# <blank> the row length that puts the numbers of a column into different banks
# was: PADDED = 32
PADDED = 33
# </blank>
square = generator.random((32, 64), np.float32)
kernels = {"naive": transpose_naive, "tiled": make_tiled(32), "padded": make_tiled(PADDED)}
transposed, launches = {}, {}
for name, kernel in kernels.items():
    transposed[name] = np.zeros((64, 32), np.float32)
    launches[name] = kernel[(2, 1), (32, 32)](square, transposed[name])
display(access_table(launches))
array_table(launches, "source", "out")

# %% tags=["same"]
L.same(square.T.copy(), transposed["padded"])

# %% tags=["claim"]
stores = {name: launch.of_array("out").sectors_per_request for name, launch in launches.items()}
conflicts = {name: launch.shared_memory.conflicts for name, launch in launches.items()}
display(L.reveal("banks", conflicts["tiled"] / 64))
L.claim(
    "a tile makes the stores of a transpose coalesced, 4 sectors per request instead of 32; reading a column of it has "
    "31 bank conflicts, and none if its rows are 33 numbers long",
    stores == {"naive": 32, "tiled": 4, "padded": 4} and conflicts == {"naive": 0, "tiled": 64 * 31, "padded": 0},
    before=conflicts["tiled"],
    after=conflicts["padded"],
    unit="bank conflicts",
    source=COUNTED,
)

# %% [markdown]
# Padding costs 128 bytes for each tile. CUTLASS and Triton *swizzle* instead: they permute the columns of each row, and need no more memory.
#
# ### 13.4 A high hit rate can be a bad sign
#
# A profiler shows the hit rate of the L1 cache. Two kernels multiply 32 x 32 matrices: the first reads every operand from global memory, the second loads tiles into shared memory first. The hit rate is computed here as the share of sectors that were requested before.

# %% tags=["predict"]
L.predict("hits")


# %% tags=["measure"]
@cuda.jit
def product_naive(left, right, out):
    x, y = cuda.grid(2)
    total = 0.0
    for k in range(32):
        total += left[y, k] * right[k, x]
    out[y, x] = total


@cuda.jit
def product_tiled(left, right, out):
    left_tile = cuda.shared.array((32, 32), cuda.float32)
    right_tile = cuda.shared.array((32, 32), cuda.float32)
    x, y = cuda.grid(2)
    left_tile[y, x] = left[y, x]
    right_tile[y, x] = right[y, x]
    cuda.syncthreads()
    total = 0.0
    for k in range(32):
        # <blank> the same product, from the tiles
        # was: total += left[y, k] * right[k, x]
        total += left_tile[y, k] * right_tile[k, x]
        # </blank>
    out[y, x] = total


left, right = generator.random((32, 32), np.float32), generator.random((32, 32), np.float32)
products, loads, hit_rates = {}, {}, {}
for name, kernel in {"naive": product_naive, "tiled": product_tiled}.items():
    products[name] = np.zeros((32, 32), np.float32)
    launch = kernel[1, (32, 32)](left, right, products[name])
    requested = launch.of_array("left").sectors + launch.of_array("right").sectors
    loads[name], hit_rates[name] = launch.global_memory.loads, 1 - 2 * 32 * 4 / requested  # 2 x 4 KiB are read
tables.table_view(
    ("", "loads from global memory", "hit rate, %"),
    [(name, f"{loads[name]:,}", f"{100 * hit_rates[name]:.0f}") for name in loads],
)

# %% tags=["claim"]
display(L.reveal("hits"), L.same(products["naive"], products["tiled"], 1e-6))
L.claim(
    "the kernel with a hit rate above 90 % executes 32 times as many loads from global memory as the one with 0 %",
    hit_rates["naive"] > 0.9 and hit_rates["tiled"] == 0 and loads["naive"] == 32 * loads["tiled"],
    before=loads["naive"],
    after=loads["tiled"],
    unit="loads",
    source=COUNTED,
)

# %% [markdown]
# The hits are repeated reads of the same numbers: each one takes an instruction and a place in the queue of the load units. Look at the time and at the bytes, not at a rate alone.

# %% [markdown]
# ## Exercise: a stencil
#
# ### 13.5 Each number once
#
# A five-point stencil computes every point from itself and its four neighbours; convolutions, image filters and simulations do the same. The naive kernel loads five numbers for each result. Load the border of the tile, and compute the result from the tile.

# %% tags=["given"]
SIDE, TILE = 32, 16
BORDERED = TILE + 2  # a tile and its border; the size of a shared array has to be a constant
grid_values = generator.random((SIDE + 2, SIDE + 2), np.float32)  # with a border of one number


@cuda.jit
def stencil_naive(values, out):
    x, y = cuda.grid(2)
    out[y, x] = (
        values[y + 1, x + 1] + values[y, x + 1] + values[y + 2, x + 1] + values[y + 1, x] + values[y + 1, x + 2]
    ) / 5


stencil_out = np.zeros((SIDE, SIDE), np.float32)
naive_stencil = stencil_naive[(2, 2), (TILE, TILE)](grid_values, stencil_out)
print(f"{naive_stencil.global_memory.loads:,} loads from global memory for {SIDE * SIDE:,} results")


# %% tags=["exercise"]
@cuda.jit
def stencil_tiled(values, out):
    tile = cuda.shared.array((BORDERED, BORDERED), cuda.float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    tile[ty + 1, tx + 1] = values[y + 1, x + 1]
    # <blank> threads at the four edges of the block load the border: above, below, left and right
    # was: pass
    if ty == 0:
        tile[0, tx + 1] = values[y, x + 1]
    if ty == TILE - 1:
        tile[TILE + 1, tx + 1] = values[y + 2, x + 1]
    if tx == 0:
        tile[ty + 1, 0] = values[y + 1, x]
    if tx == TILE - 1:
        tile[ty + 1, TILE + 1] = values[y + 1, x + 2]
    # </blank>
    cuda.syncthreads()
    # <blank> the mean of the five points, from the tile
    # was: out[y, x] = tile[ty + 1, tx + 1]
    out[y, x] = (
        tile[ty + 1, tx + 1] + tile[ty, tx + 1] + tile[ty + 2, tx + 1] + tile[ty + 1, tx] + tile[ty + 1, tx + 2]
    ) / 5
    # </blank>


tiled_out = np.zeros((SIDE, SIDE), np.float32)
tiled_stencil = stencil_tiled[(2, 2), (TILE, TILE)](grid_values, tiled_out)
display(access_table({"naive": naive_stencil, "tiled": tiled_stencil}))
is_right = np.allclose(stencil_out, tiled_out, rtol=1e-6)
L.score("loads", tiled_stencil.global_memory.loads if is_right else None)

# %% tags=["claim"]
L.claim(
    "with a tile and its border, a stencil loads 1.25 numbers for each result instead of 5",
    is_right and tiled_stencil.global_memory.loads == 1.25 * SIDE * SIDE,
    before=naive_stencil.global_memory.loads / SIDE**2,
    after=tiled_stencil.global_memory.loads / SIDE**2,
    unit="loads per result",
    source=COUNTED,
)

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 13.6 Alignment
#
# A view such as `tensor[1:]` begins 4 bytes after a sector boundary. How many sectors does a warp need?

# %% tags=["predict"]
L.predict("aligned")

# %% tags=["measure"]
base = generator.random(264, np.float32)


@cuda.jit
def copy_numbers(source, out):
    i = cuda.grid(1)
    out[i] = source[i]


def sectors_of_view(begin):
    """Return the sectors per request if 128 threads copy 128 numbers that begin at this place."""
    # <blank> the view of `base` that begins at `begin` and has 128 numbers
    # was: view = base[:128]
    view = base[begin : begin + 128]
    # </blank>
    copied = np.zeros(128, np.float32)
    return copy_numbers[1, 128](view, copied).of_array("source").sectors_per_request


by_begin = {begin: sectors_of_view(begin) for begin in (0, 1, 4, 7, 8, 16)}
tables.table_view(("begins at number", "sectors per request"), [(k, f"{v:.0f}") for k, v in by_begin.items()])

# %% tags=["claim"]
display(L.reveal("aligned", by_begin[1]))
L.claim(
    "a view that begins within a sector costs 5 sectors per request instead of 4; one that begins at a multiple of 8 "
    "numbers costs nothing",
    by_begin == {0: 4, 1: 5, 4: 5, 7: 5, 8: 4, 16: 4},
    before=by_begin[1],
    after=by_begin[8],
    unit="sectors per request",
    source=COUNTED,
)

# %% [markdown]
# A quarter more at most, and the next warp finds the fifth sector in the cache. What hurts more: PyTorch's elementwise kernels load four float32 numbers with one instruction only if the address is a multiple of 16 bytes, and tensor cores want float16 rows whose length is a multiple of 8 (notebook [08](08_mixed_precision.ipynb)).
#
# ### 13.7 channels_last: copies that nobody wrote
#
# A block of ConvNeXt alternates between a convolution and layers that need the channels last: LayerNorm and Linear. `permute` only changes the view. But LayerNorm needs contiguous memory, so PyTorch silently copies the tensor first. Count these copies, as gpulab records them.

# %% tags=["predict"]
L.predict("channels")


# %% tags=["measure"]
class ConvNextBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x):
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.down(functional.gelu(self.up(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


def count_copies(name, model, images):
    """Record one forward pass; return its result, and the number of copies."""
    with gpulab.profile(name), torch.no_grad():
        result = model(images)
    events = gpulab.runs[name].events
    return result, int((events["name"] == "aten::clone").sum())


torch.manual_seed(0)
model, images = nn.Sequential(*[ConvNextBlock(32) for _ in range(4)]), torch.randn(4, 32, 16, 16)
plain_result, plain_copies = count_copies("contiguous", model, images)
# <blank> the model and the images in torch.channels_last: `.to(memory_format=...)`, for both
# was: pass
model = model.to(memory_format=torch.channels_last)
images = images.to(memory_format=torch.channels_last)
# </blank>
result, copies = count_copies("channels_last", model, images)
print(f"copies in one forward pass of four blocks: {plain_copies} before, {copies} after")

# %% tags=["same"]
L.same(plain_result, result, 1e-4)

# %% tags=["claim"]
display(L.reveal("channels", plain_copies))
L.claim(
    "in channels_last, four blocks of ConvNeXt copy nothing; in the default format, each block copies its activations "
    "once per forward pass",
    plain_copies == 4 and copies == 0,
    before=plain_copies,
    after=copies,
    unit="copies",
    source=COUNTED,
)

# %% [markdown]
# Try it with the model only: there are four copies again, but in another place. A convolution computes in channels_last if its weight or its input has this format, so now each convolution copies its input. On GPUs with tensor cores, channels_last also avoids the transposes inside of cuDNN; for float32 on old GPUs, it can be slower. So measure, with `%gpufix` or `%gpucompare`.

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "a"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# Let neighbouring threads read neighbouring numbers: 4 sectors per request for float32. Change the layout of the data (struct of arrays, channels_last) before you write clever kernels. Load what several threads need into shared memory once, and pad it if threads read columns. In PyTorch, look for copies that nobody wrote: `aten::clone` and `aten::contiguous` in the operators of a report.

# %% tags=["card"]
L.card()
