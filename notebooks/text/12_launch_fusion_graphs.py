# %% [markdown]
# # 12 Launches, fusion and graphs: why does the GPU wait between small kernels?
#
# A kernel is a piece of work that a GPU does in one go. Your program does not run it, it asks for it: Python calls PyTorch, PyTorch picks a kernel and hands it to the driver. Such a launch costs the host some microseconds, whether the kernel then takes one microsecond or a second. Where kernels are long, launches hide behind them. Where kernels are short, the GPU is done before the next one arrives, and stands still.
#
# Do [01 What is utilisation](01_what_is_utilisation.ipynb) first if "GPU busy" means little to you yet. You need 45 minutes and no GPU. Operators, bytes and graphs are counted on your machine and are exact. Times without a GPU are those of a virtual H100: kernels priced by a model, calls priced by how fast this CPU calls PyTorch. CUDA graphs and torch.compile do not run on it; what they would give is a forecast, and says so.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("12_launch_fusion_graphs")
L

# %% tags=["setup"]
import time

import numpy as np
import torch
from IPython.display import display
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from gpulab.lessons import COUNTED, MEASURED, SIMULATED
from gpulab.lessons.labs import fusing, launches

runs = gpulab.runs

# %% [markdown]
# ## The symptom
#
# A small transformer writes a text: each token is fed back to get the next, so there is one token to work on at a time. No data is loaded, no value is read. It is slower than anyone expected, and a colleague proposes a faster GPU. Predict, then run the program and read the report.

# %% tags=["predict"]
L.predict("idle")

# %% [markdown]
# Press a choice, or write `L.answer("idle", "b")` in a cell of your own. Everything runs without an answer, too.

# %% tags=["measure"]
# %%gpuprofile --virtual auto decode
model = launches.decoder("cuda")
token = torch.zeros(1, dtype=torch.long, device="cuda")
with torch.no_grad():
    for _ in range(48):
        token = model(token)
        gpulab.step()

# %% tags=["check"]
display(L.reveal("idle", launches.signature(runs["decode"]).idle_frac, "%"))
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("cause", answer)


# %% [markdown]
# ### 12.6 The signature: short kernels, and gaps between them
#
# A GPU that stands still says nothing of why. An article gives the signature of launch overhead: many small kernels, done quickly, with gaps between them. Test whether that tells it from its rivals. Here are two more programs: one whose data comes late, and one that has enough to do. Both run the same layers, on 32,768 rows at once.
#
# The declared delay of the first is a pause of 8 ms for each batch, as of a slow disk.

# %% tags=["measure"]
class Late:
    """Batches of tokens that take a while to come."""

    def __init__(self, pause_s):
        self.pause_s = pause_s

    def __len__(self):
        return 12

    def __getitem__(self, place):
        time.sleep(self.pause_s)
        return torch.full((32768,), place)


def tower(pause_s):
    """Five wide layers on each batch."""
    there = {"device": "cuda", "dtype": torch.bfloat16}
    embed = nn.Embedding(256, 1024, **there)
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024, **there), nn.GELU()) for _ in range(5)])
    late = Late(pause_s)
    batches = DataLoader(late, batch_size=None) if pause_s else [late[place].cuda() for place in range(len(late))]
    with torch.no_grad():
        for tokens in batches:
            layers(embed(tokens.cuda()))
            gpulab.step()


with L.gpu("late"):
    tower(pause_s=0.008)
with L.gpu("full"):
    tower(pause_s=0)

# <fix>
# was: program = "late"
program = "decode"
# </fix>
seen = {name: launches.signature(runs[name]) for name in (program, "late", "full")}
causes = {name: gpulab.diagnose(runs[name]).first.rule for name in seen}
print("         kernels  median    under 10 us   GPU idle   of that for data   first finding")
for name, each in seen.items():
    times = f"{each.kernels:7d}  {each.median_us:6.1f} us  {each.small_frac:10.0%}"
    print(f"{name:8s} {times}  {each.idle_frac:9.0%}  {each.loader_frac:17.0%}   {causes[name]}")
print(f"[{runs['decode'].source}]")
gpulab.charts.queue_depth(runs["decode"])

# %% [markdown]
# Two readings separate the three. *Idle* parts the program that is busy from the two that wait. *Length of the kernels* parts these two: the one that waits for data has long kernels and few. The third column, where the idle time stands, confirms it.
#
# The chart shows the queue: work that was called for and is not finished. At or near one, the host brings each kernel at the moment, or after the moment, when the one before is done. In a healthy loop the queue is deep.

# %% tags=["claim"]
small, late, full = seen[program], seen["late"], seen["full"]
L.claim(
    "two programs leave the GPU idle for at least half of the time; at least 90 % of the kernels of the one that waits "
    "for launches are under 10 us, at most half of those of the one that waits for data, and the first findings differ",
    min(small.idle_frac, late.idle_frac) >= 0.5 > full.idle_frac
    and small.small_frac >= 0.9
    and late.small_frac <= 0.5
    and causes[program] == "dispatch_bound" != causes["late"],
    before=late.small_frac,
    after=small.small_frac,
    unit="%",
    source=runs["decode"],
)

# %% [markdown]
# ## Fewer kernels
#
# ### 12.1 Eight operators, or one
#
# GELU is a smooth relative of ReLU. Papers print it as a formula, and a formula typed into Python is a chain of operators: each reads its input from the GPU's memory and writes its output there, for the next one to read. To *fuse* the chain means to make one kernel of it that reads once and writes once.

# %% tags=["predict"]
L.predict("fuse")


# %% [markdown]
# The fused version is PyTorch's own operator; you could as well have a compiler write it, and before you change anything, gpulab can forecast what `torch.compile` would make of the run.

# %% tags=["measure"]
def by_hand(x):
    """GELU as papers print it."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x.pow(3))))


def in_one(x):
    """The same, as one operator."""
    # <fix>
    # was: return by_hand(x)
    return functional.gelu(x, approximate="tanh")
    # </fix>


def passed(activation, count):
    """Twelve passes over so many numbers."""
    x = torch.ones(count, device="cuda")
    for _ in range(12):
        activation(x)
        gpulab.step()


MANY, FEW = 1 << 26, 1 << 10
for name, activation, count in (
    ("by hand", by_hand, MANY),
    ("in one", in_one, MANY),
    ("by hand, few", by_hand, FEW),
    ("in one, few", in_one, FEW),
):
    with L.gpu(name):
        passed(activation, count)
x = torch.linspace(-4, 4, 1000)
long, short = fusing.traffic(lambda: by_hand(x)), fusing.traffic(lambda: in_one(x))
for name, each in {"by hand": long, "in one": short}.items():
    print(f"{name:8s} {each.operators} operators, {each.bytes // (4 * len(x)):2d} times its input moved   [{COUNTED}]")
took = {name: launches.signature(runs[name]) for name in ("by hand", "in one", "by hand, few", "in one, few")}
for name, each in took.items():
    print(f"{name:13s} {each.kernels} kernels, {each.step_ms:.3f} ms   [{runs[name].source}]")
print(f"forecast for compile: {launches.forecast(runs['by hand'], 'compile')}")

# %% tags=["same"]
L.same(by_hand(x), in_one(x))

# %% tags=["claim"]
gain = took["by hand"].step_ms / took["in one"].step_ms
display(L.reveal("fuse", gain, "times as fast"))
L.claim(
    "eight operators that move their input 18 times become one that moves it twice, and on 67 million numbers that is "
    "at least 5 times as fast",
    (long.operators, short.operators) == (8, 1) and long.bytes == 9 * short.bytes and gain >= 5,
    before=took["by hand"].step_ms,
    after=took["in one"].step_ms,
    unit="ms",
    source=runs["in one"],
)

# %% [markdown]
# With many numbers fusing saves *bytes*; with few it saves *calls*. The report calls them by different names, and only the second is launch overhead.
#
# The forecast for the compiler was more careful than what one operator reached. It reads a run, not your formula: it sees eight passes in a row and must allow for inputs that each has of its own. This chain has none.
#
# **When has a compiler paid?** `torch.compile` writes such kernels for any chain, and takes its time in the first call. On size tiny the next cell leaves it out, because that may take a minute, and takes a measurement made earlier: the formula above for a million numbers on two cores, torch 2.13, nothing cached. On sizes lab and full it compiles here, for fewer numbers. (Triton has an interpreter to try kernels without a GPU. It is not part of gpulab, and not needed here.)

# %% tags=["claim"]
earlier = fusing.MEASURED_EARLIER
made = L.pick(tiny=lambda: earlier, lab=lambda: fusing.compiled(by_hand, 1 << 17, L.device))()
# <fix>
# was: first_call_s = made.before_ms / 1e3
first_call_s = made.first_call_s
# </fix>
calls = fusing.break_even(first_call_s, made.before_ms, made.after_ms)
L.claim(
    "the compiler makes one kernel of the formula; its first call has paid only after 100 calls or more",
    made.kernels == 1 and calls >= 100,
    after=calls,
    unit="calls",
    source="recorded on two cores of an AMD EPYC" if made is earlier else MEASURED,
)

# %% [markdown]
# The earlier measurement says some five thousand calls: 14.4 s for the first one, 2.7 ms gained by each further one. That is nothing for training, and a lot for a notebook cell, a test, or inputs of ever new sizes, each of which is compiled again. What was compiled once is kept on disk, so the same program pays much less the second time.
#
# ### 12.2 An optimizer: a loop, lists, one kernel
#
# The same thought for the optimizer. Adam's formula has about seven operators, and a model has many parameters.

# %% tags=["predict"]
L.predict("adam")

# %% [markdown]
# PyTorch has three ways. `foreach=False` goes through parameters one by one. `foreach=True` hands lists of tensors to each operator, and is what you get on a GPU if you say nothing. The third makes one kernel of the whole formula. Which keyword is it?

# %% tags=["exercise"]
# <blank> the keyword of torch.optim.Adam that asks for one kernel
# was: best = {}
best = {"fused": True}
# </blank>
ways = {"loop": {"foreach": False}, "lists": {"foreach": True}, "one": best}


# %% tags=["measure"]
def steps(device, count=12, **way):
    """Steps of Adam on 100 small parameters; gives the parameters."""
    parameters = launches.tensors(100, 16, device)
    optimizer = torch.optim.Adam(parameters, lr=1e-3, **way)
    for _ in range(count):
        optimizer.step()
    return parameters, optimizer


dispatched, adam = {}, {}
for name, way in ways.items():
    _, optimizer = steps("cpu", **way)
    dispatched[name] = fusing.dispatched(optimizer.step)
    with L.gpu(f"adam, {name}"):
        steps("cuda", **way)
    adam[name] = launches.signature(runs[f"adam, {name}"])
    print(f"{name:6s} {dispatched[name]:4d} calls of the dispatcher on the CPU   [{COUNTED}]")
    print(f"       {adam[name].kernels:4d} kernels, {adam[name].step_ms:.2f} ms   [{runs[f'adam, {name}'].source}]")
for name, change in {"lists": "optimizer=foreach", "one": "optimizer=fused"}.items():
    print(f"forecast for {name}: {launches.forecast(runs['adam, loop'], change)}")

# %% tags=["same"]
one_by_one, together = ([each.detach() for each in steps("cpu", **ways[name])[0]] for name in ("loop", "one"))
L.same(one_by_one, together)

# %% tags=["claim"]
display(L.reveal("adam", adam["loop"].kernels, "kernels"))
L.claim(
    "an Adam step on 100 parameters takes 600 kernels or more in a loop, at most 40 by lists and at most 8 fused; the "
    "fused step is at least 4 times as fast as the loop",
    adam["loop"].kernels >= 600
    and adam["lists"].kernels <= 40
    and adam["one"].kernels <= 8
    and 4 * adam["one"].step_ms <= adam["loop"].step_ms,
    before=adam["loop"].kernels,
    after=adam["one"].kernels,
    unit="kernels",
    source=runs["adam, one"],
)

# %% [markdown]
# Counts differ a little from one version of PyTorch to the next, so the claim states ranges. The way from loop to lists is most of it, and on a GPU you have had that since PyTorch 2.0 without asking. Compare the forecasts with what the virtual GPU then made of it. Where this was written both were too hopeful, by two to five times: besides its kernels a step costs Python that collects the lists, parameter by parameter, and that the forecast puts at little. The direction was right, the rest was not; so it is good to measure after a forecast.
#
# ## One call for all of them
#
# ### 12.3 A CUDA graph
#
# Back to the text. Its kernels cannot well be fused further, but for each token they are the same, in the same order, at the same addresses. A CUDA graph records them once and starts all of them with one call.

# %% tags=["predict"]
L.predict("graph")


# %% [markdown]
# A graph plays back addresses and sizes, not Python. So the program must allow it. A cache of keys and values that grows with each token has a new size and a new address every time. One with room for all tokens from the start has not, and a mask leaves out what is not filled yet. First: is that the same text?

# %% tags=["same"]
def text(growing, count=24):
    """Tokens that the decoder writes, on this machine's own device."""
    writer, token, written = launches.decoder(L.device, growing=growing), torch.tensor([7], device=L.device), []
    with torch.no_grad():
        for _ in range(count):
            token = writer(token)
            written.append(token.clone())
    return torch.cat(written).cpu()


L.same(text(growing=True), text(growing=False))

# %% [markdown]
# Now the forecast. A virtual GPU cannot capture a graph, so without CUDA this is all there is: a replay of the recorded run in which the calls of a token cost one launch of 10 to 30 us, and its kernels follow each other as closely as they do in recorded graphs. That one launch is left of all is what a graph *is*, and no finding of ours. With CUDA the cell also captures the graph and measures.
#
# The colleague's faster GPU can be asked for as well: `instant_gpu` is one that takes no time at all.

# %% tags=["measure"]
# %gpuwhatif decode cuda_graphs

# %% tags=["measure"]
# <fix>
# was: change = "instant_gpu"
change = "cuda_graphs"
# </fix>
graph, faster_gpu = (runs["decode"].whatif(each).prediction for each in (change, "instant_gpu"))
if L.device == "cuda":
    with torch.no_grad(), L.gpu("graph"):
        replay = launches.captured(lambda: token.copy_(model(token)))
        model.place.zero_()
        for _ in range(48):
            replay()
            gpulab.step()
    print(f"measured with a graph: {launches.signature(runs['graph']).step_ms:.3f} ms   [{runs['graph'].source}]")

# %% tags=["claim"]
token_calls = launches.signature(runs["decode"]).calls
at_least = graph.step_ns / graph.worst_ns
display(L.reveal("graph", graph.speedup, "times as fast, by forecast"))
L.claim(
    "a token takes 60 launches or more; as one graph it is predicted at least 2 times as fast even at the slow end of "
    "the range, and a GPU that takes no time at all gives less than 1.5 times",
    token_calls >= 60 and at_least >= 2 and faster_gpu.speedup < 1.5,
    before=graph.step_ns / 1e6,
    after=graph.worst_ns / 1e6,
    unit="ms a token",
    source=runs["decode"],
)

# %% [markdown]
# In PyTorch it takes four lines, or `torch.compile(model, mode="reduce-overhead")`, which fuses as well:
#
# ```python
# graph = torch.cuda.CUDAGraph()
# with torch.cuda.graph(graph):  # after a few ordinary steps
#     token.copy_(model(token))
# graph.replay()  # for each further token
# ```
#
# What the forecast cannot know: sizes that change. It would say the same of the growing cache, whose graph would be wrong. And larger batches are the first remedy where you have more than one text to write: the same launches then serve all of them.
#
# ### 12.4 What cuts a graph in two
#
# Compilers and graphs need a stretch of tensor code that they may look at as a whole. Articles advise a computation graph with few sequential operations. In PyTorch that begins with a plain thing: nothing in the middle that needs Python.

# %% tags=["predict"]
L.predict("breaks")


# %% [markdown]
# Here are two functions, one that reads a value, and one that prints. `torch._dynamo.explain` tells what torch.compile would see, without compiling: two seconds instead of a minute. Then write the first one so that it gives the same and stays whole.

# %% tags=["exercise"]
def reading(x, weight):
    """Rows of a layer, over its largest value."""
    state = torch.tanh(x @ weight)
    largest = state.abs().max().item()
    return functional.gelu(state / largest)


def printing(x, weight):
    """A layer that tells about itself."""
    state = torch.tanh(x @ weight)
    print("largest:", state.abs().max())
    return functional.gelu(state)


def whole(x, weight):
    """The same as `reading`, in one graph."""
    state = torch.tanh(x @ weight)
    # <blank> does Python need to know the largest value?
    # was: largest = state.abs().max().item()
    largest = state.abs().max()
    # </blank>
    return functional.gelu(state / largest)


rows, weight = torch.linspace(-1, 1, 96).view(8, 12), torch.linspace(-2, 1, 144).view(12, 12)
found = {each.__name__: fusing.graphs(each, rows, weight) for each in (reading, printing, whole)}
for name, each in found.items():
    print(f"{name:9s} graphs: {each.graphs}, breaks: {each.breaks}")

# %% tags=["same"]
L.same(reading(rows, weight), whole(rows, weight))

# %% tags=["claim"]
display(L.reveal("breaks"))
L.claim(
    "a value read or a line printed half way cuts a function into 2 graphs; without it there is 1",
    (found["reading"].graphs, found["printing"].graphs, found["whole"].graphs) == (2, 2, 1),
    before=found["reading"].graphs,
    after=found["whole"].graphs,
    unit="graphs",
    source=COUNTED,
)

# %% [markdown]
# Each cut costs twice: nothing is fused across it, and a value that is read makes the host wait for the GPU, so that the launches after it come late ([07](07_host_to_device.ipynb)). `torch.compile(model, fullgraph=True)` turns a cut into an error, which is a good thing to have in a test.
#
# ### 12.5 Programs that stay: a persistent kernel
#
# For work that repeats, an article advises persistent kernels. A kernel is many *programs* (thread blocks), spread over the multiprocessors, 132 on an H100. You can launch a kernel for each tile of an array; or one kernel with a program for each tile; or one kernel with just as many programs as there are multiprocessors, each of which goes on to the next tile. PyTorch has no switch for it: one writes such kernels in Triton or CUDA. What there is to count can be counted with a grid that runs programs one after the other in Python. It knows no time.

# %% tags=["predict"]
L.predict("loop")

# %% [markdown]
# **Make.** Write the program that stays: it is number `program.place` of `program.programs`, does every tile that falls to it, and fetches the table as rarely as it can. `L.hint("loads")` helps, three times.

# %% tags=["exercise"]
TILES, PROGRAMS = 1056, launches.MULTIPROCESSORS
samples, table = np.arange(TILES * 64, dtype=np.float32).reshape(TILES, 64), np.linspace(1, 2, 64, dtype=np.float32)


def one_tile(program, out, tile=None):
    """Scale one tile by the table: the tile given, or the one of this program's number."""
    tile = program.place if tile is None else tile
    out[tile] = samples[tile] * program.load(table)


def staying(program, out):
    """Scale all tiles that fall to this program."""
    # <blank> a loop over tiles: which are this program's, and what is fetched before the loop?
    # was: one_tile(program, out)
    gains = program.load(table)
    for tile in range(program.place, TILES, program.programs):
        out[tile] = samples[tile] * gains
    # </blank>


outs = {name: np.zeros_like(samples) for name in ("launch a tile", "program a tile", "staying")}
grids = {name: launches.Grid() for name in outs}
for tile in range(TILES):
    grids["launch a tile"].launch(one_tile, 1, outs["launch a tile"], tile)
grids["program a tile"].launch(one_tile, TILES, outs["program a tile"])
grids["staying"].launch(staying, PROGRAMS, outs["staying"])
for name, each in grids.items():
    print(f"{name:15s} {each.launches:5d} launches, {each.programs:5d} programs, {each.loads:5d} loads of the table")

# %% tags=["same"]
L.same(outs["launch a tile"], outs["staying"])

# %% tags=["score"]
right = np.array_equal(outs["launch a tile"], outs["staying"])
L.score("loads", grids["staying"].loads if right else None)

# %% tags=["claim"]
display(L.reveal("loop"))
stays = grids["staying"]
L.claim(
    "1,056 launches become one in both other ways; only the 132 programs that stay fetch the table an eighth as often, "
    "with the same result",
    right and [each.launches for each in grids.values()] == [TILES, 1, 1] and 8 * stays.loads == TILES,
    before=grids["program a tile"].loads,
    after=stays.loads,
    unit="loads",
    source=SIMULATED,
)

# %% [markdown]
# So one launch is no merit of persistence: any grid gives that. What staying adds is what a program keeps: a table, weights, a counter of work to fetch next. Its price: tiles are dealt out in advance, and if they differ in work, some programs end early.
#
# ## When none of this helps
#
# ### 12.7 Large products
#
# A public course (NERSC, 2023) trained a weather model on an A100: 42.6 samples a second before a fused Adam and 42.6 with it, 42.8 with a compiler on top. Here is a model of that kind, four large products, in bfloat16.

# %% tags=["predict"]
L.predict("null")

# %% tags=["measure"]
# <fix>
# was: WIDTH, ROWS = 64, 64
WIDTH, ROWS = 4096, 131072
# </fix>


def products(**way):
    """Train four large layers for some steps."""
    there = {"device": "cuda", "dtype": torch.bfloat16}
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False, **there) for _ in range(4)], nn.Linear(WIDTH, 1, **there))
    optimizer = torch.optim.AdamW(net.parameters(), **way)
    inputs = torch.randn(ROWS, WIDTH, **there)
    for _ in range(8):
        net(inputs).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


with L.gpu("products"):
    products()
with L.gpu("products, fused"):
    products(fused=True)
plain, fused = (launches.signature(runs[name]) for name in ("products", "products, fused"))
gains = {"fused Adam": plain.step_ms / fused.step_ms}
print(
    f"{plain.kernels} kernels of {plain.median_us:.0f} us, GPU idle {plain.idle_frac:.0%}   [{runs['products'].source}]"
)
print(f"with a fused Adam: {gains['fused Adam']:.3f} times as fast   [{runs['products, fused'].source}]")
for change in ("optimizer=fused", "compile", "cuda_graphs"):
    gains[change] = runs["products"].whatif(change).prediction.speedup
    print(f"forecast for {change}: {gains[change]:.3f} times as fast")

# %% tags=["claim"]
display(L.reveal("null", gains["fused Adam"], "times as fast"))
L.claim(
    "on four large products neither a fused Adam nor, by forecast, torch.compile or a CUDA graph gains 2 %",
    max(gains.values()) < 1.02,
    before=plain.step_ms,
    after=fused.step_ms,
    unit="ms",
    source=runs["products, fused"],
)

# %% [markdown]
# The calls of this step happen while the GPU works: they are free already. Look at the signature first, and spare yourself the afternoon.
#
# ## Another symptom
#
# Somebody sends you four readings of another run.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## What you take with you
#
# Short kernels with gaps: give each call more to do. In this order: more samples at once; operators and optimizers that do more in one; torch.compile, without anything in the middle that needs Python; a CUDA graph, where sizes stay. Long kernels: leave it. The report of [00](00_start_here.ipynb) tells which it is, and the order of fixes on a whole program is told in [03](03_parallel_work_and_batch.ipynb) and [08](08_mixed_precision.ipynb).

# %% tags=["card"]
L.card()
