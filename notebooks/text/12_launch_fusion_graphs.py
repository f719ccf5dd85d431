# %% [markdown]
# # 12 Launches, fusion and graphs: why does the GPU wait between small kernels?
#
# A kernel is a piece of work that a GPU does in one go. Your program does not run it, it asks for it: Python calls PyTorch, PyTorch picks a kernel and hands it to the driver. Such a launch costs the host some microseconds, whether the kernel then takes one microsecond or a second. Where kernels are long, launches hide behind them. Where kernels are short, the GPU is done before the next one arrives, and stands still.
#
# Do [01 What is utilisation](01_what_is_utilisation.ipynb) first if "GPU busy" means little to you yet. You need 45 minutes and no GPU. Operators, bytes and graphs are counted on your machine and are exact. Times without a GPU are those of a virtual H100: its kernels are priced by a model of the hardware, and the calls by how fast this CPU calls PyTorch. CUDA graphs and torch.compile do not run on it; what they would give is a forecast, and says so.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("12_launch_fusion_graphs")
L

# %% tags=["setup"]
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gpulab.lessons import COUNTED, MEASURED, SIMULATED
from gpulab.lessons.labs.kernels import fusion
from gpulab.lessons.labs.host import launches
from gpulab.lessons.labs import tables

runs = gpulab.runs

# %% [markdown]
# ## The symptom
#
# A small transformer writes a text: each token is fed back to get the next, so there is one token to work on at a time. No data is loaded, no value is read. It is slower than anyone expected, and a colleague proposes a faster GPU. Predict, then run the program and read the report.

# %% tags=["predict"]
L.predict("idle")

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
# Three rows of that table are one thing at three depths. *Launch calls* are the driver, taking a kernel. *Operator dispatch* is PyTorch, which picks the kernel, checks shapes and makes room for the result. *Python between operators* is the code above both, yours and that of `nn.Module`. Meanwhile the GPU has nothing to do. (The headline's share is a little lower than GPU idle in the table: it counts the idle time that this cause explains.)
#
# ### 12.6 The signature: short kernels, and gaps between them
#
# That a GPU stands still says nothing of why. An article gives the signature of launch overhead: many small kernels, done quickly, with gaps between them. Does that tell it from its rivals? Here are two more programs with the same wide layers, on 32,768 rows at once: *late* gets its batches from a slow disk, a pause of 8 ms each; *full* has them already.

# %% tags=["measure"]
with L.gpu("late"):
    launches.tower(pause_s=0.008)
with L.gpu("full"):
    launches.tower(pause_s=0)

# <fix>
# was: program = "late"
program = "decode"
# </fix>
names = (program, "late", "full")
seen = {name: launches.signature(runs[name]) for name in names}
findings = {name: gpulab.diagnose(runs[name]).first for name in names}
for name, finding in findings.items():
    print(f"{name}: {finding.claim}")
launches.beside(seen, below=f"{runs[program].source}.")

# %% [markdown]
# *GPU idle* parts the program that is busy from the two that wait. *The length of the kernels* parts these two: the one that waits for data has few kernels, and long ones. The last column confirms it: where the idle time stands.

# %% tags=["claim"]
small, late, full = seen[program], seen["late"], seen["full"]
L.claim(
    "two programs leave the GPU idle for at least half of the time; at least 90 % of the kernels of the one that waits "
    "for launches are under 10 us, at most half of those of the one that waits for data, and the first findings differ",
    min(small.idle_frac, late.idle_frac) >= 0.5 > full.idle_frac
    and small.small_frac >= 0.9
    and late.small_frac <= 0.5
    and findings[program].rule == "dispatch_bound" != findings["late"].rule,
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
#
# `0.5 * x * (1 + torch.tanh(0.797 * (x + 0.0447 * x.pow(3))))` has eight operators. Predict for 67 million numbers.

# %% tags=["predict"]
L.predict("fuse")


# %% [markdown]
# The fused version is PyTorch's own operator. A compiler could write it as well, and before you change anything gpulab can forecast what `torch.compile` would make of the run.

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


def recorded(name, activation, count):
    """Twelve passes over so many numbers."""
    with L.gpu(name):
        x = torch.ones(count, device="cuda")
        for _ in range(12):
            activation(x)
            gpulab.step()
    return launches.signature(runs[name])


x, took, moved = torch.linspace(-4, 4, 1000), {}, {}
for name, activation in {"by hand": by_hand, "in one": in_one}.items():
    moved[name] = fusion.traffic(partial(activation, x))
    took[name] = [recorded(f"{name}, {count:,}", activation, count) for count in (1 << 26, 1 << 10)]
print("by hand, 67 million, forecast for compile:", launches.forecast(runs["by hand, 67,108,864"], "compile"))
tables.rows(
    ("", "operators", "times its input moved", "67 million, ms", "1,024, ms"),
    [
        (
            name,
            moved[name].operators,
            moved[name].bytes // (4 * len(x)),
            *(f"{each.step_ms:.3f}" for each in took[name]),
        )
        for name in took
    ],
    below=f"Operators and bytes are counted here; times: {runs['in one, 1,024'].source}.",
)

# %% tags=["claim"]
slow_ms, quick_ms = (took[name][0].step_ms for name in ("by hand", "in one"))
display(L.reveal("fuse", slow_ms / quick_ms, "times as fast"), L.same(by_hand(x), in_one(x)))
L.claim(
    "eight operators that move their input 18 times become one that moves it twice, and on 67 million numbers that is "
    "at least 5 times as fast",
    [each.operators for each in moved.values()] == [8, 1]
    and moved["by hand"].bytes == 9 * moved["in one"].bytes
    and slow_ms >= 5 * quick_ms,
    before=slow_ms,
    after=quick_ms,
    unit="ms",
    source=runs["in one, 67,108,864"],
)

# %% [markdown]
# Eighteen, because six of the eight operators read one tensor and write one, and two of them read two. With many numbers fusing saves *bytes*; with few it saves *calls*. Only the second is launch overhead.
#
# The forecast for the compiler was more careful than what one operator reached. It reads a run, not your formula, and must allow for inputs that each of the eight has of its own. This chain has none.
#
# **When has a compiler paid?** `torch.compile` writes such kernels for any chain, and takes its time in the first call. The next cell compiles the formula on this machine and then divides: the time of the first call, by what each later call gains. It takes up to a minute, and prints nothing until then. (On size tiny it takes a measurement made earlier instead.)

# %% tags=["claim"]
earlier = fusion.MEASURED_EARLIER
made = L.pick(tiny=lambda: earlier, lab=lambda: fusion.compiled(by_hand, 1 << 17, L.device))()
# <fix>
# was: first_call_s = made.before_ms / 1e3
first_call_s = made.first_call_s
# </fix>
calls = fusion.break_even(first_call_s, made.before_ms, made.after_ms)
L.claim(
    "the compiler makes one kernel of the formula; its first call has paid only after 100 calls or more",
    made.kernels == 1 and calls >= 100,
    before=calls,
    unit="calls",
    source="recorded on two cores of an AMD EPYC" if made is earlier else MEASURED,
)

# %% [markdown]
# How many depends on what a call gains. Measured earlier, for a million numbers on two cores with torch 2.13: 14.4 s for the first call, 2.7 ms gained by each further one, some five thousand calls. With the 131,072 numbers of this cell a call gains far less, and it takes many more. That is nothing for training, and a lot for a notebook cell, a test, or inputs of ever new sizes, each of which is compiled again. What was compiled once is kept on disk, so the same program pays much less the second time.
#
# ### 12.2 An optimizer: a loop, lists, one kernel
#
# The same thought for the optimizer. Adam's formula has about seven operators, and a model has many parameters.

# %% tags=["predict"]
L.predict("adam")

# %% [markdown]
# PyTorch has three ways. `foreach=False` goes through parameters one by one. `foreach=True` hands lists of tensors to each operator, and is what you get on a GPU if you say nothing. The third makes one kernel of the whole formula. Which keyword is it? `help(torch.optim.Adam)` knows.

# %% tags=["exercise"]
# <blank> the keyword that asks for one kernel, as {"name": True}
# was: best = None
best = {"fused": True}
# </blank>
L.check("keyword", best)


# %% tags=["measure"]
def steps(device, way, count=12):
    """Steps of Adam on 100 small parameters; gives parameters and optimizer."""
    parameters = launches.tensors(100, 16, device)
    optimizer = torch.optim.Adam(parameters, lr=1e-3, **way)
    for _ in range(count):
        optimizer.step()
    return parameters, optimizer


ways = {"loop": {"foreach": False}, "lists": {"foreach": True}, "one": launches.adam_way(best)}
forecasts = {"lists": "optimizer=foreach", "one": "optimizer=fused"}
adam, lines = {}, []
for name, way in ways.items():
    with L.gpu(f"adam, {name}"):
        steps("cuda", way)
    adam[name] = launches.signature(runs[f"adam, {name}"])
    calls = fusion.dispatched(steps("cpu", way)[1].step)
    told = launches.forecast(runs["adam, loop"], forecasts[name]) if name in forecasts else ""
    lines.append((name, calls, adam[name].kernels, f"{adam[name].step_ms:.2f}", told))
tables.rows(
    ("a step", "calls of PyTorch", "kernels", "ms", "forecast from the loop"),
    lines,
    below=f"Calls are counted on the CPU; kernels and times: {runs['adam, loop'].source}.",
)

# %% tags=["claim"]
one_by_one, together = ([each.detach() for each in steps("cpu", ways[name])[0]] for name in ("loop", "one"))
display(L.reveal("adam", adam["loop"].kernels, "kernels"), L.same(one_by_one, together))
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
# Counts differ a little from one version of PyTorch to the next, so the claim states ranges. The way from loop to lists is most of it, and on a GPU you have had that since PyTorch 2.0 without asking.
#
# Compare the forecasts with what the virtual GPU then made of it: where this was written, both were within their ranges. That says less than it seems, as both stand on one model of the hardware. On a GPU, measure after a forecast.
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
# Now the forecast. A virtual GPU cannot capture a graph, so without CUDA this is all there is: a replay of the recorded run in which the calls of a token cost one launch of 10 to 30 us, and its kernels follow each other as closely as they do in recorded graphs. That one launch is left of all is what a graph *is*, and no finding of ours. With CUDA the next cells also capture the graph and measure.

# %% tags=["measure"]
# %gpuwhatif decode cuda_graphs

# %% [markdown]
# And the colleague's faster GPU? `instant_gpu` asks for one that takes no time at all for any kernel.

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
print(f"one graph: {graph.speedup:.1f} times as fast; a GPU that takes no time: {faster_gpu.speedup:.2f} times")

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
# The faster GPU would have bought next to nothing: what a token waits for is the computer that calls, not the GPU that is called. In PyTorch a graph takes four lines, or `torch.compile(model, mode="reduce-overhead")`, which fuses as well:
#
# ```python
# graph = torch.cuda.CUDAGraph()
# with torch.cuda.graph(graph):  # after a few ordinary steps
#     token.copy_(model(token))
# graph.replay()  # for each further token
# ```
#
# What the forecast cannot know: sizes that change. It would say the same of the growing cache, whose graph would be wrong. And where you have more than one text to write, larger batches are the first remedy: the same launches then serve all of them.
#
# ### 12.4 What cuts a graph in two
#
# Compilers and graphs need a stretch of tensor code that they may look at as a whole. Articles advise a computation graph with few sequential operations. In PyTorch that begins with a plain thing: nothing in the middle that needs Python.

# %% tags=["predict"]
L.predict("breaks")


# %% [markdown]
# Here are two functions, one that reads a value, and one that prints. `fusing.graphs` asks PyTorch's `torch._dynamo.explain` what torch.compile would see, without compiling: two seconds instead of a minute. Your turn: write `whole` so that it gives the same as `reading`, in one graph.

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


rows, weight = torch.linspace(-1, 1, 96).view(8, 12), torch.linspace(-0.08, 0.04, 144).view(12, 12)
found = {each.__name__: fusion.graphs(each, rows, weight) for each in (reading, printing, whole)}
for name, each in found.items():
    print(f"{name:9s} graphs: {each.graphs}, breaks: {each.breaks}")

# %% tags=["claim"]
display(L.reveal("breaks"), L.same(reading(rows, weight), whole(rows, weight)))
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
# For work that repeats, an article advises persistent kernels. A kernel is many *programs* (thread blocks), spread over the multiprocessors, 132 on an H100. To scale an array tile by tile you can launch a kernel for each tile; or one kernel with a program for each tile; or one kernel with just as many programs as there are multiprocessors, each of which goes on to the next tile. PyTorch has no switch for the last: one writes such kernels in Triton or CUDA. What there is to count is counted here with a grid that runs programs one after the other in Python. It knows no time.

# %% tags=["predict"]
L.predict("loop")

# %% [markdown]
# **Make.** Write the program that stays: it is number `program.place` of `program.programs`, does every tile that falls to it, and fetches the table as rarely as it can.

# %% tags=["exercise"]
TILES, PROGRAMS = 1056, launches.MULTIPROCESSORS
samples = np.arange(TILES * 64, dtype=np.float32).reshape(TILES, 64)


def one_tile(program, out, tile=None):
    """Scale one tile by the table: the tile given, or the one of this program's number."""
    tile = program.place if tile is None else tile
    out[tile] = samples[tile] * program.load()  # the table, from the GPU's memory


def staying(program, out):
    """Scale all tiles that fall to this program."""
    # <blank> a loop over tiles: which are this program's, and what is fetched before the loop?
    # was: one_tile(program, out)
    gains = program.load()
    for tile in range(program.place, TILES, program.programs):
        out[tile] = samples[tile] * gains
    # </blank>


outs = {name: np.zeros_like(samples) for name in ("launch a tile", "program a tile", "staying")}
grids = {name: launches.Grid(np.linspace(1, 2, 64, dtype=np.float32)) for name in outs}
for tile in range(TILES):
    grids["launch a tile"].launch(one_tile, 1, outs["launch a tile"], tile)
grids["program a tile"].launch(one_tile, TILES, outs["program a tile"])
grids["staying"].launch(staying, PROGRAMS, outs["staying"])
right = np.array_equal(outs["launch a tile"], outs["staying"])
counts = [(name, each.launches, each.programs, each.loads) for name, each in grids.items()]
display(tables.rows(("", "launches", "programs", "loads of the table"), counts))
L.score("loads", grids["staying"].loads if right else None)

# %% tags=["claim"]
display(L.reveal("loop"), L.same(outs["launch a tile"], outs["staying"]))
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
gains = {"a fused Adam": plain.step_ms / fused.step_ms}
for change in ("optimizer=fused", "compile", "cuda_graphs"):
    gains[f"forecast for {change}"] = runs["products"].whatif(change).prediction.speedup
display(launches.beside({"products": plain, "products, fused": fused}, below=f"{runs['products'].source}."))
tables.rows(("a change", "times as fast"), [(name, f"{gain:.3f}") for name, gain in gains.items()])

# %% tags=["claim"]
display(L.reveal("null", gains["a fused Adam"], "times as fast"))
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
