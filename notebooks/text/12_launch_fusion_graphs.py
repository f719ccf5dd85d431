# %% [markdown]
# # 12 Launches, fusion and graphs: why does the GPU wait between small kernels?
#
# A kernel is a function that runs on the GPU. Your program does not run it directly: Python calls PyTorch, PyTorch selects a kernel and passes it to the driver. Such a launch costs the host some microseconds, whether the kernel then runs for one microsecond or for a second. If kernels are long, the launches overlap with them. If kernels are short, the GPU finishes each one before the next one arrives, and is idle in between.
#
# Do [01 What is utilisation](01_what_is_utilisation.ipynb) first if you cannot yet explain "GPU busy". You need 45 minutes and no GPU. Operators, bytes and graphs are counted on your machine and are exact. Without a GPU, times come from a virtual H100: a model of the hardware estimates its kernels, and the launch times depend on how fast this CPU calls PyTorch. CUDA graphs and torch.compile do not run on a virtual GPU; their gains are predicted and labelled as predictions.

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

from gpulab.lessons import COUNTED, MEASURED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.host import launches
from gpulab.lessons.labs.kernels import fusion
from gpulab.lessons.labs.steps import throughput

runs = gpulab.runs

# %% [markdown]
# ## The symptom
#
# A small transformer generates text: each token is the input for the next one, so the model processes one token at a time. The program loads no data and reads no value. It is slower than anyone expected, and a colleague suggests a faster GPU. Answer the question, then run the program and read the report.

# %% tags=["predict"]
L.predict("idle")

# %% tags=["measure"]
# %%gpuprofile --virtual auto decode
model = launches.token_decoder("cuda")
token = torch.zeros(1, dtype=torch.long, device="cuda")
with torch.no_grad():
    for _ in range(48):
        token = model(token)
        gpulab.step()

# %% tags=["check"]
display(L.reveal("idle", launches.launch_signature(runs["decode"]).idle_frac, "%"))
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("cause", answer)

# %% [markdown]
# Three rows of that table describe three levels of the same work. *Launch calls*: the driver accepts a kernel. *Operator dispatch*: PyTorch selects the kernel, checks shapes and allocates the result. *Python code < 0.2 ms at a time*: the code above both, yours and that of `nn.Module`. During all of this, the GPU has nothing to do. (The share in the headline is lower than *GPU idle* in the table: it is the idle time of this cause.)
#
# ### 12.1 The signature: short kernels with gaps between them
#
# An idle GPU does not tell you the cause. One article describes the signature of launch overhead: many small kernels that finish quickly, with gaps between them. Is this enough to tell it from other causes? Here are two more programs with the same wide layers, on 32,768 rows at once: *late* gets its batches from a slow disk, with a pause of 8 ms each; *full* already has them in memory.

# %% tags=["measure"]
with L.gpu("late"):
    launches.run_wide_layers(pause_s=0.008)
with L.gpu("full"):
    launches.run_wide_layers(pause_s=0)

# <blank> the program of the symptom
# was: program = "late"
program = "decode"
# </blank>
names = (program, "late", "full")
signatures = {name: launches.launch_signature(runs[name]) for name in names}
diagnoses = {name: gpulab.diagnose(runs[name]) for name in names}
for name, diagnosis in diagnoses.items():
    print(f"{name}: {diagnosis.verdict}")
launches.signature_table(signatures, below=f"{runs[program].source}.")

# %% [markdown]
# *GPU idle* separates the busy program from the two that wait. *The length of the kernels* separates these two: the program that waits for data has few kernels, and long ones. The last column confirms it: it shows the share of a step that is spent waiting for data.

# %% tags=["claim"]
small, late, full = signatures[program], signatures["late"], signatures["full"]
L.claim(
    "two programs leave the GPU idle for at least half of the time; in the launch-bound one at least 90 % of the "
    "kernels are shorter than 10 us, in the one that waits for data at most half are, and their first findings differ",
    min(small.idle_frac, late.idle_frac) >= 0.5 > full.idle_frac
    and small.small_frac >= 0.9
    and late.small_frac <= 0.5
    and diagnoses[program].first.rule == "dispatch_bound" != diagnoses["late"].first.rule,
    before=late.small_frac,
    after=small.small_frac,
    unit="%",
    source=runs["decode"],
)

# %% [markdown]
# ## Fewer kernels
#
# ### 12.2 Eight operators, or one
#
# GELU is a smooth variant of ReLU. Papers print it as a formula, and a formula typed into Python is a chain of operators: each operator reads its input from GPU memory and writes its output to GPU memory, where the next one reads it. To *fuse* the chain means to run it as one kernel that reads once and writes once.
#
# `0.5 * x * (1 + torch.tanh(0.798 * (x + 0.0447 * x.pow(3))))` has eight operators. Predict the gain for 67 million numbers.

# %% tags=["predict"]
L.predict("fuse")


# %% [markdown]
# The fused version is PyTorch's own operator. A compiler could generate one too, and gpulab can predict the effect of `torch.compile` from the recorded run before you change anything.

# %% tags=["measure"]
def gelu_formula(x):
    """GELU as papers print it."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x.pow(3))))


def gelu_fused(x):
    """The same function as one operator."""
    # <blank> one operator: functional.gelu with approximate="tanh"
    # was: return gelu_formula(x)
    return functional.gelu(x, approximate="tanh")
    # </blank>


def record_signature(name, activation, count):
    """Apply the activation twelve times to this many numbers, and return the signature of the run."""
    with L.gpu(name):
        x = torch.ones(count, device="cuda")
        for _ in range(12):
            activation(x)
            gpulab.step()
    return launches.launch_signature(runs[name])


x, results, traffic, cpu_ms = torch.linspace(-4, 4, 1000), {}, {}, {}
large = torch.linspace(-4, 4, 1 << 22)
for name, activation in {"formula": gelu_formula, "fused": gelu_fused}.items():
    cpu_ms[name] = 1e3 * throughput.fastest_cpu_s(partial(activation, large), 7)
    traffic[name] = fusion.operator_traffic(partial(activation, x))
    results[name] = [record_signature(f"{name}, {count:,}", activation, count) for count in (1 << 26, 1 << 10)]
print(
    f"4 million numbers on this CPU: {cpu_ms['formula']:.1f} ms by formula, {cpu_ms['fused']:.1f} ms fused (CPU time)"
)
print("predicted for torch.compile, 67 million:", launches.predicted_step(runs["formula, 67,108,864"], "compile"))
lines = []
for name, signatures in results.items():
    tensors_moved = traffic[name].bytes // (4 * len(x))
    lines.append((name, traffic[name].operators, tensors_moved, *(f"{result.step_ms:.3f}" for result in signatures)))
tables.table_view(
    ("", "operators", "tensors read or written", "ms for 67 million numbers", "ms for 1,024"),
    lines,
    below=f"Operators and bytes are counted here; times: {runs['fused, 1,024'].source}.",
)

# %% tags=["claim"]
formula_ms, fused_ms = (results[name][0].step_ms for name in ("formula", "fused"))
display(L.reveal("fuse", formula_ms / fused_ms, "times as fast"), L.same(gelu_formula(x), gelu_fused(x)))
L.claim(
    "eight operators move 18 times the bytes of their input, one fused operator moves 2 times; on this CPU, it is at "
    "least 1.5 times as fast for 4 million numbers",
    [count.operators for count in traffic.values()] == [8, 1]
    and traffic["formula"].bytes == 9 * traffic["fused"].bytes
    and cpu_ms["formula"] >= 1.5 * cpu_ms["fused"],
    before=cpu_ms["formula"],
    after=cpu_ms["fused"],
    unit="ms",
    source=MEASURED,
)

# %% [markdown]
# The count is 18 because six of the eight operators read one tensor and write one, and two of them read two. For many numbers, fusion saves *bytes*; for few numbers, it saves *launches*. Only the second is launch overhead.
#
# The prediction for the compiler is more cautious than the result of the fused operator. The prediction knows the run but not your formula, so it must allow for the case that each of the eight operators has inputs of its own. In this chain, none has.
#
# **When does a compiler pay off?** `torch.compile` generates such kernels for any chain, but needs time for it in the first call. The next cell compiles the formula on this machine, and divides the time of the first call by the gain of each later call. This takes up to a minute, and prints nothing until then. (With size tiny, or where torch.compile finds no C++ compiler, the cell uses an earlier measurement instead.)

# %% tags=["claim"]
earlier = fusion.STORED_TIMING
compilation = L.pick(tiny=lambda: earlier, lab=lambda: fusion.time_compile(gelu_formula, 1 << 17, L.device))()
# <blank> the time of the first call: compilation.first_call_s
# was: first_call_s = compilation.before_ms / 1e3
first_call_s = compilation.first_call_s
# </blank>
calls = fusion.break_even(first_call_s, compilation.before_ms, compilation.after_ms)
times = f"{compilation.before_ms:.2f} ms eager, {compilation.after_ms:.2f} ms compiled"
print(f"one call: {times}; counted as the first call: {first_call_s:.3g} s")
L.claim(
    "torch.compile generates one kernel for the formula; its first call pays off only after 100 calls or more",
    compilation.kernels == 1 and calls >= 100,
    before=calls,
    unit="calls",
    source="recorded on two cores of an AMD EPYC" if compilation is earlier else MEASURED,
)

# %% [markdown]
# The exact number depends on the gain per call. An earlier measurement, for a million numbers on two cores with torch 2.13: the first call took 14.4 s, each further call gained 2.7 ms, so it paid off after about five thousand calls. With the 131,072 numbers of this cell, a call gains far less, so it takes many more calls. That is little for training, but a lot for a notebook cell, for a test, or for inputs whose shape keeps changing. A second size triggers one more compilation, whose result serves all further sizes (seven sizes make two graphs); another number of dimensions or another dtype is compiled again. Compiled code is cached on disk, so the same program needs much less time when it runs again. In a training loop, compile the model, `model = torch.compile(model)`: this compiles its backward pass, too, and the loop, the DataLoader and the optimizer stay as they are.
#
# ### 12.3 An optimizer: for-loop, foreach, fused
#
# The same idea works for the optimizer. Adam's formula has about seven operators, and a model has many parameters.

# %% tags=["predict"]
L.predict("adam")

# %% [markdown]
# PyTorch has three implementations. `foreach=False` processes the parameters one by one. `foreach=True` passes lists of tensors to each operator, and is the default on a GPU. The third one runs the whole formula as one kernel. Which keyword selects it? See `help(torch.optim.Adam)`.

# %% tags=["exercise"]
# <blank> the keyword that selects one kernel, for example {"name": True}
# was: best = None
best = {"fused": True}
# </blank>
L.check("keyword", best)


# %% tags=["measure"]
def adam_steps(device, options, count=12):
    """Run steps of Adam on 100 small parameters; return the parameters and the optimizer."""
    parameters = launches.square_parameters(100, 16, device)
    optimizer = torch.optim.Adam(parameters, lr=1e-3, **options)
    for _ in range(count):
        optimizer.step()
    return parameters, optimizer


implementations = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": launches.valid_adam_options(best),
}
rewrites = {"foreach": "optimizer=foreach", "fused": "optimizer=fused"}
adam, operator_calls, lines = {}, {}, []
for name, options in implementations.items():
    with L.gpu(f"adam, {name}"):
        adam_steps("cuda", options)
    adam[name] = launches.launch_signature(runs[f"adam, {name}"])
    operator_calls[name] = fusion.count_dispatches(adam_steps("cpu", options)[1].step)
    predicted = launches.predicted_step(runs["adam, for-loop"], rewrites[name]) if name in rewrites else ""
    lines.append((name, operator_calls[name], adam[name].kernels, f"{adam[name].step_ms:.2f}", predicted))
tables.table_view(
    ("per step", "operator calls", "kernels", "ms", "predicted from the for-loop"),
    lines,
    below=f"Operator calls are counted on the CPU; kernels and times: {runs['adam, for-loop'].source}.",
)

# %% tags=["claim"]
loop_result, fused_result = (
    [parameter.detach() for parameter in adam_steps("cpu", implementations[name])[0]] for name in ("for-loop", "fused")
)
display(L.reveal("adam", adam["for-loop"].kernels, "kernels"), L.same(loop_result, fused_result))
L.claim(
    "an Adam step on 100 parameters calls at least 800 operators in a for-loop, at most 300 with foreach and at most "
    "20 fused, with the same result",
    operator_calls["for-loop"] >= 800 and operator_calls["foreach"] <= 300 and operator_calls["fused"] <= 20,
    before=operator_calls["for-loop"],
    after=operator_calls["fused"],
    unit="operator calls",
    source=COUNTED,
)

# %% [markdown]
# The counts differ slightly between versions of PyTorch, so the claim uses limits. Most of the gain comes from foreach, which has been the default on a GPU since PyTorch 2.0.
#
# Compare the predictions with the results on the virtual GPU: when this lesson was written, foreach was within its range, and fused was sometimes slower than its range: with four kernels left, its step is mostly Python code of the optimizer on the host, and that time varies. Even agreement proves less than it seems, because both use the same hardware model. On a real GPU, always measure after a prediction.

# %% [markdown]
# ## One launch for all kernels
#
# ### 12.4 A CUDA graph
#
# Back to text generation. A compiler can fuse some of its kernels, but not its many small matrix products. All of them are the same for each token, in the same order, at the same addresses. A CUDA graph records them once and launches all of them with one call.

# %% tags=["predict"]
L.predict("graph")


# %% [markdown]
# A graph replays addresses and sizes, not Python code. So the program must be suitable for it. A key-value cache that grows with each token has a new size and a new address every time. A cache that is allocated for all tokens at the start does not, and a mask excludes the part that is not filled yet. First check: does it produce the same text?

# %% tags=["same"]
def generate(growing, count=24):
    """Return the tokens that the decoder generates on this machine's own device."""
    decoder, token, tokens = (
        launches.token_decoder(L.device, growing_cache=growing),
        torch.tensor([7], device=L.device),
        [],
    )
    with torch.no_grad():
        for _ in range(count):
            token = decoder(token)
            tokens.append(token.clone())
    return torch.cat(tokens).cpu()


L.same(generate(growing=True), generate(growing=False))

# %% [markdown]
# Now the prediction. A virtual GPU cannot capture a graph, so without CUDA you get only a prediction: a replay of the recorded run, in which all launches of a token are replaced by one of 10 to 30 us, and the kernels follow each other as closely as in recorded graphs. That a single launch remains is the *definition* of a graph, not a result of ours. With CUDA, the next cells also capture the graph and measure it.

# %% tags=["measure"]
# %gpuwhatif decode cuda_graphs

# %% [markdown]
# And the faster GPU that the colleague suggested? `instant_gpu` predicts the effect of a GPU on which every kernel takes no time at all.

# %% tags=["measure"]
# <blank> the change that replaces launches by one
# was: change = "instant_gpu"
change = "cuda_graphs"
# </blank>
graph, faster_gpu = (runs["decode"].whatif(rewrite).prediction for rewrite in (change, "instant_gpu"))
if L.device == "cuda":
    with torch.no_grad(), L.gpu("graph"):
        replay = launches.capture_graph(lambda: token.copy_(model(token)))
        model.place.zero_()
        for _ in range(48):
            replay()
            gpulab.step()
    print(
        f"measured with a graph: {launches.launch_signature(runs['graph']).step_ms:.3f} ms   [{runs['graph'].source}]"
    )
launches_per_token = launches.launch_signature(runs["decode"]).calls
worst_speedup = graph.step_ns / graph.worst_ns
print(f"launches per token now: {launches_per_token}")
print(f"predicted for {change}: {graph.speedup:.1f} times as fast, at least {worst_speedup:.1f} times")
print(f"predicted for an infinitely fast GPU: {faster_gpu.speedup:.2f} times as fast")

# %% tags=["claim"]
display(L.reveal("graph", graph.speedup, "times as fast (predicted)"))
L.claim(
    "a token needs at least 60 launches; the lower end of the prediction for a CUDA graph is at least 2 times as fast, "
    "and an infinitely fast GPU would be less than 1.5 times as fast",
    launches_per_token >= 60 and worst_speedup >= 2 and faster_gpu.speedup < 1.5,
    before=graph.step_ns / 1e6,
    after=graph.worst_ns / 1e6,
    unit="ms per token",
    source=runs["decode"],
)

# %% [markdown]
# The faster GPU would have gained almost nothing: a token waits for the host that launches the kernels, not for the GPU that runs them. In PyTorch, a graph needs four lines, or `torch.compile(model, mode="reduce-overhead")`, which also fuses operators:
#
# ```python
# graph = torch.cuda.CUDAGraph()
# with torch.cuda.graph(graph):  # after a few ordinary steps
#     token.copy_(model(token))
# graph.replay()  # for each further token
# ```
#
# The prediction cannot know whether sizes change. It would be the same for the growing cache, whose graph would give wrong results. And if you have more than one text to generate, increase the batch size first: then the same launches serve all texts.

# %% [markdown]
# ## When none of this helps
#
# ### 12.5 Large matrix products
#
# A public course (NERSC, 2023) trained a weather model on an A100: 42.6 samples per second without a fused Adam, 42.6 with it, and 42.8 with a compiler as well. Here is a similar model: four large matrix products in bfloat16, each followed by a GELU, which a compiler could try to fuse.

# %% tags=["predict"]
L.predict("null")

# %% tags=["measure"]
# <blank> a wide model with many rows: 4,096 and 131,072
# was: WIDTH, ROWS = 64, 64
WIDTH, ROWS = 4096, 131072
# </blank>


def train_large_layers(**adam_options):
    """Train four large layers for some steps."""
    options = {"device": "cuda", "dtype": torch.bfloat16}
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False, **options), nn.GELU()) for _ in range(4)]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, 1, **options))
    optimizer = torch.optim.AdamW(net.parameters(), **adam_options)
    inputs = torch.randn(ROWS, WIDTH, **options)
    for _ in range(8):
        net(inputs).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


with L.gpu("products"):
    train_large_layers()
with L.gpu("products, fused"):
    train_large_layers(fused=True)
default, fused = (launches.launch_signature(runs[name]) for name in ("products", "products, fused"))
gains = {"fused Adam": default.step_ms / fused.step_ms}
kernels = runs["products"].events.query("kind == 'kernel'")
gelu_frac = kernels[kernels["name"].str.contains("Gelu")]["dur_ns"].sum() / kernels["dur_ns"].sum()
print(f"GELU takes {gelu_frac:.0%} of the GPU time")
for change in ("optimizer=fused", "compile", "cuda_graphs"):
    gains[f"predicted for {change}"] = runs["products"].whatif(change).prediction.speedup
display(launches.signature_table({"products": default, "products, fused": fused}, below=f"{runs['products'].source}."))
tables.table_view(("change", "times as fast"), [(name, f"{gain:.3f}") for name, gain in gains.items()])

# %% tags=["claim"]
display(L.reveal("null", gains["fused Adam"], "times as fast"))
L.claim(
    "with four large matrix products and GELUs, a fused Adam gains less than 2 %, and so do, by prediction, "
    "torch.compile and a CUDA graph, although a tenth of the GPU time goes to GELU",
    max(gains.values()) < 1.02 and 0.08 < gelu_frac < 0.2,
    before=default.step_ms,
    after=fused.step_ms,
    unit="ms",
    source=runs["products, fused"],
)

# %% [markdown]
# The launches of this step overlap with GPU work, so they already cost nothing. A GELU between two products is one kernel already: it has no neighbour to fuse with, except the products themselves, and libraries and compilers rarely fuse into those in training. Check the signature first, before you spend an afternoon on it.

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 12.6 Graph breaks
#
# Compilers and CUDA graphs need a section of tensor code that they can process as a whole. Articles recommend a computation graph with few sequential operations. In PyTorch, the first step is simple: nothing in the middle may need Python.

# %% tags=["predict"]
L.predict("breaks")


# %% [markdown]
# Here are two functions: one reads a value, and one prints. `fusion.count_graphs` uses PyTorch's `torch._dynamo.explain` to show the graphs that torch.compile would make, without compiling: two seconds instead of a minute. Your turn: write `one_graph` so that it returns the same as `reading`, but in one graph.

# %% tags=["exercise"]
def reading(x, weight):
    """Divide the output of a layer by its largest absolute value."""
    state = torch.tanh(x @ weight)
    largest = state.abs().max().item()
    return functional.gelu(state / largest)


def printing(x, weight):
    """Print a value of the layer."""
    state = torch.tanh(x @ weight)
    print("largest:", state.abs().max())
    return functional.gelu(state)


def one_graph(x, weight):
    """The same as `reading`, in one graph."""
    state = torch.tanh(x @ weight)
    # <blank> the largest absolute value as a tensor: does Python need to know it?
    # was: largest = state.abs().max().item()
    largest = state.abs().max()
    # </blank>
    return functional.gelu(state / largest)


rows, weight = torch.linspace(-0.5, 1, 96).view(8, 12), torch.linspace(-0.08, 0.04, 144).view(12, 12)
explained = {
    function.__name__: fusion.count_graphs(function, rows, weight) for function in (reading, printing, one_graph)
}
for name, result in explained.items():
    print(f"{name:9s} graphs: {result.graphs}, breaks: {result.breaks}")

# %% tags=["claim"]
display(L.reveal("breaks"), L.same(reading(rows, weight), one_graph(rows, weight)))
L.claim(
    "reading a value or printing in the middle splits a function into 2 graphs; without it there is 1",
    (explained["reading"].graphs, explained["printing"].graphs, explained["one_graph"].graphs) == (2, 2, 1),
    before=explained["reading"].graphs,
    after=explained["one_graph"].graphs,
    unit="graphs",
    source=COUNTED,
)

# %% [markdown]
# Each graph break has two costs: nothing is fused across it, and reading a value makes the host wait for the GPU, so that later launches are delayed ([07](07_host_to_device.ipynb)). `torch.compile(model, fullgraph=True)` turns a graph break into an error, which is useful in a test.
#
# ### 12.7 Persistent kernels
#
# For repetitive work, one article recommends persistent kernels. A kernel consists of many *programs* (thread blocks), which are distributed over the multiprocessors, 132 on an H100. To scale an array tile by tile, you can launch one kernel per tile; or one kernel with one program per tile; or one kernel with as many programs as there are multiprocessors, each of which processes one tile after the other. PyTorch has no general switch for the last variant: you write such kernels in Triton or CUDA. (Many library kernels for matrix products on Hopper and later GPUs already work like this.) The next cell counts launches and loads on a simulated grid that runs the programs one after the other in Python. It measures no times.

# %% tags=["predict"]
L.predict("loop")

# %% [markdown]
# **Exercise.** Write the persistent program. It is number `program.index` of `program.programs`, processes every tile assigned to it, and loads the table as rarely as possible.

# %% tags=["exercise"]
TILES, PROGRAMS = 1056, launches.H100_MULTIPROCESSORS
samples = np.arange(TILES * 64, dtype=np.float32).reshape(TILES, 64)


def one_tile(program, out, tile=None):
    """Scale one tile by the table: the given tile, or the tile with this program's number."""
    tile = program.index if tile is None else tile
    out[tile] = samples[tile] * program.load()  # the table, from GPU memory


def persistent(program, out):
    """Scale all tiles that are assigned to this program."""
    # <blank> a loop over tiles: which tiles belong to this program, and what is loaded before the loop?
    # was: one_tile(program, out)
    gains = program.load()
    for tile in range(program.index, TILES, program.programs):
        out[tile] = samples[tile] * gains
    # </blank>


outputs = {name: np.zeros_like(samples) for name in ("launch per tile", "program per tile", "persistent")}
grids = {name: launches.KernelGrid(np.linspace(1, 2, 64, dtype=np.float32)) for name in outputs}
for tile in range(TILES):
    grids["launch per tile"].launch(one_tile, 1, outputs["launch per tile"], tile)
grids["program per tile"].launch(one_tile, TILES, outputs["program per tile"])
grids["persistent"].launch(persistent, PROGRAMS, outputs["persistent"])
right = np.array_equal(outputs["launch per tile"], outputs["persistent"])
lines = []
for name, grid in grids.items():
    scaled_tiles = int((outputs[name] == outputs["launch per tile"]).all(axis=1).sum())
    lines.append((name, *(f"{count:,}" for count in (grid.launches, grid.programs, grid.loads, scaled_tiles))))
display(tables.table_view(("", "launches", "programs", "loads of the table", "tiles with the right result"), lines))
L.score("loads", grids["persistent"].loads if right else None)

# %% tags=["claim"]
display(L.reveal("loop"), L.same(outputs["launch per tile"], outputs["persistent"]))
persistent_grid = grids["persistent"]
L.claim(
    "both other variants need 1 launch instead of 1,056; only the 132 persistent programs also need just an eighth of "
    "the loads, with the same result",
    right and [grid.launches for grid in grids.values()] == [TILES, 1, 1] and 8 * persistent_grid.loads == TILES,
    before=grids["program per tile"].loads,
    after=persistent_grid.loads,
    unit="loads",
    source=COUNTED,
)

# %% [markdown]
# So a single launch is not an advantage of persistent kernels: any grid has it. Their advantage is the state that a program keeps: a table, weights, or a counter for the next work item. If the tiles are assigned in advance, as here, and some take longer than others, some programs finish early; a shared counter for the next tile avoids that.

# %% [markdown]
# ## Transfer
#
# Someone sends you four counters of another run.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# If kernels are short with gaps between them, give each launch more work, in this order: larger batches; fused operators and optimizers; torch.compile, with nothing in the middle that needs Python; a CUDA graph, if sizes do not change. If kernels are long, their launches are hidden, so graphs and fused optimizers gain nothing; fusion still helps *chains* of long elementwise kernels, because it saves bytes (12.2), but not a model of large matrix products (12.5). The report (see [00](00_start_here.ipynb)) tells you which case you have. For the order of fixes in a whole program, see [03](03_parallel_work_and_batch.ipynb) and [08](08_mixed_precision.ipynb).

# %% tags=["card"]
L.card()
