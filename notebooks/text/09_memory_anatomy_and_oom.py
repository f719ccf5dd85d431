# %% [markdown]
# # 09 Memory: anatomy, and what to do when it runs out
#
# What fills the memory of a GPU, when does it peak, and what is the cheapest fix for an out-of-memory error? First you calculate the memory of one training step by hand, to within 2 %. Then five programs run out of memory, each for a different reason, and a short decision tree leads from each error to its fix. This takes 55 minutes and needs no GPU; half way through is a good place for a break.
#
# Bytes are *counted* here: they follow from tensor sizes and are the same on every machine. Where an experiment needs a GPU, it *simulates* a small one: ordinary CUDA code runs on tensors that have sizes but no values, and its memory is a simulation of PyTorch's caching allocator. You can fill this memory without harm, and it raises PyTorch's own error. For this reason, the first half uses simulated GPUs even if you have a real one.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("09_memory_anatomy_and_oom")
L

# %% [markdown]
# ## The symptom
#
# Here is an ordinary training loop. It ran on a colleague's GPU; on this one, an L4 with 22 GiB, it does not. "Halve the batch size until it runs", says the colleague. You would rather know what uses the memory.

# %% tags=["given"]
from functools import partial

import psutil
import torch
from torch import nn

from gpulab.lessons.labs import tables
from gpulab.lessons.labs.memory import fragmentation, memory_counters, oom_fixes, oom_programs, sizes
from gpulab.lessons.labs.memory.live_bytes import count_live_bytes

if L.device == "cpu":
    torch.set_num_threads(1)  # the CPU computations here are small
WIDTH, LAYERS, MIB = 4096, 8, 2**20


def make_model(width=WIDTH, layers=LAYERS):
    blocks = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


def training(*, width=WIDTH, layers=LAYERS, half=False, **options):
    """Build the model and the optimizer; return a function that runs one training step."""
    with torch.device("cuda"):
        model = make_model(width, layers)
    optimizer = torch.optim.Adam(model.parameters(), **options)

    def step(batch):
        x = torch.randn(batch, width, device="cuda")
        y = torch.randint(10, (batch,), device="cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def try_on_l4(name, batch, **options):
    """Run one training step on an L4; return the error message, or that the step runs."""
    try:
        with gpulab.virtual_gpu("l4", name):
            training(**options)(batch)
    except torch.OutOfMemoryError as error:
        return str(error).partition(" If reserved")[0]
    return f"A step of {batch:,} samples runs."


TOO_LARGE_BATCH = 96 * 1024
print(try_on_l4("symptom", TOO_LARGE_BATCH))

# %% [markdown]
# The message shows how much memory was requested, how much the GPU has, how much is free, how much tensors use (*allocated*), and how much PyTorch caches for later tensors (*reserved but unallocated*). It does not say what the tensors are for. Find that out next.

# %% [markdown]
# ## Anatomy
#
# ### 09.1 The memory of one step, by hand
#
# Take a smaller batch of 4,096 samples. The weights of this model have 512 MiB, and the output of one layer has 64 MiB for that batch. Guess before you calculate: how much memory is allocated at the peak?

# %% tags=["predict"]
L.predict("guess")

# %% [markdown]
# Now calculate it by hand.
#
# - **Weights**, and two numbers of Adam's state for each of them: they are always there.
# - **Activations**: what the forward pass saves for the backward pass. A `Linear` saves its input, because it needs the input to compute the gradient of its weights. A `GELU` saves its own input. So each of the eight layers saves two tensors as large as its output, and the last `Linear` saves one.
# - **A temporary tensor**: the gradient that the backward pass hands from layer to layer, as large as one output.
# - **Gradients** of the weights are the part that most people get wrong. When backward starts, all activations are in memory, but no gradients. Each layer then allocates a gradient of 64 MiB and frees 128 MiB of activations. So memory falls from there on; all gradients and all activations are never in memory together.
#
# The next cell counts the weights on the *meta* device. Tensors on that device have a shape but no memory, so you can count a model of any size on any machine.

# %% tags=["worked"]
batch, float_bytes = 4096, 4  # a float32 has four bytes

with torch.device("meta"):
    weights = sum(parameter.numel() for parameter in make_model().parameters())

output_bytes = batch * WIDTH * float_bytes  # of one layer
by_hand = {
    "parameters": weights * float_bytes,
    "optimizer": 2 * weights * float_bytes,
    "activations": (2 * LAYERS + 1) * output_bytes,
    "temporaries": output_bytes,
}
# <blank> add up what is in memory when the backward pass begins
# was: peak_by_hand = sum(by_hand.values()) + weights * float_bytes
peak_by_hand = sum(by_hand.values())  # without gradients: they appear as activations are freed
# </blank>
print(f"by hand: {peak_by_hand / MIB:,.0f} MiB")


# %% [markdown]
# A counter follows every tensor of a real step on the meta device, from its creation until it is freed. `gpulab.virtual.fits` also classifies every byte by its purpose, on a simulated GPU with unlimited memory: the first table compares its numbers with yours, the second one shows what is in memory at the same time, by phase of the step. (To see the whole report, put `counted` alone at the end of a cell.)

# %% tags=["measure"]
def count_steps(batch, width=WIDTH, layers=LAYERS):
    """Run two steps on the meta device; return the bytes of tensors at the peak of the second one, and after it."""
    with torch.device("meta"), count_live_bytes() as live:
        model = make_model(width, layers)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            live.peak_bytes = 0
            optimizer.zero_grad()
            x, y = torch.randn(batch, width), torch.randint(10, (batch,))
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return live.peak_bytes, live.bytes


counted_peak, _ = count_steps(batch)
print(f"counted: {counted_peak / MIB:,.0f} MiB")
counted = gpulab.virtual.fits(training, "l4", batch, name="by hand")
peak = counted.fit.estimate.peak
display(sizes.peak_comparison(by_hand, peak_by_hand, counted.fit.estimate))
sizes.phase_table(counted.fit.estimate)

# %% tags=["claim"]
display(L.reveal("guess", peak.bytes / 2**30, "GiB"))
L.claim(
    "the peak calculated by hand is within 2 % of the counted peak",
    abs(peak_by_hand / counted_peak - 1) <= 0.02,
    before=peak_by_hand / MIB,
    after=counted_peak / MIB,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# A program *needs* more than the allocated memory: it also needs the memory that PyTorch reserves without using it, the workspace of cuBLAS (the library that multiplies matrices), and the CUDA context, which every process has as soon as it uses the GPU. The last two are estimates from published sources, not counts.
#
# The same calculation works for a model that no laptop could build. This one has 9.3 GiB of weights. Its batch is small, so the peak is in the optimizer step, with all gradients and almost no activations. How many numbers does training store per weight?

# %% tags=["exercise"]
# <blank> how many numbers per weight, including the weight itself?
# was: numbers_per_weight = 1
numbers_per_weight = 4  # the weight, its gradient, and two of Adam's state
# </blank>
with torch.device("meta"):
    large_weights = sum(parameter.numel() for parameter in make_model(width=8192, layers=37).parameters())
states_by_hand = numbers_per_weight * float_bytes * large_weights

_, states = count_steps(1024, width=8192, layers=37)  # after the step, when there are no activations
large = gpulab.virtual.fits(partial(training, width=8192, layers=37), "h100", 1024, name="large")
weights_gib = large_weights * float_bytes / 2**30
print(f"weights {weights_gib:.1f} GiB; by hand {states_by_hand / 2**30:.1f} GiB; counted {states / 2**30:.1f}")
print(f"on an H100: {large.verdict}; an L4 has 22 GiB in total")

# %% tags=["claim"]
L.claim(
    "for a model with 9 GiB of weights that was never built, the calculated weights, gradients and optimizer state are "
    "within 2 % of the count",
    large_weights * float_bytes > 9 * 2**30 and abs(states_by_hand / states - 1) <= 0.02,
    before=states_by_hand / 2**30,
    after=states / 2**30,
    unit="GiB",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# You will often read that mixed precision halves the memory and doubles the batch size. Mixed precision (notebook [08](08_mixed_precision.ipynb)) runs matrix products in 16 bits, with half the bytes; in PyTorch, `autocast` decides which operators use it. Look at the four parts above, and predict the effect for the batch of 4,096.

# %% tags=["predict"]
L.predict("amp")

# %% tags=["measure"]
# <blank> the first batch of the search: as many samples as in 09.1 (a variable above holds them)
# was: first_batch = 8 * batch
first_batch = batch
# </blank>
searches = {
    name: gpulab.virtual.max_batch(partial(training, half=name == "autocast"), "l4", first_batch).max_batch
    for name in ("float32", "autocast")
}
fp32_bytes, autocast_bytes = (search.estimates[0].peak.bytes for search in searches.values())  # of the first batch
with_autocast = try_on_l4("symptom, autocast", TOO_LARGE_BATCH, half=True)
print(with_autocast)
sizes.batch_search_table(searches)

# %% tags=["claim"]
display(L.reveal("amp", autocast_bytes / fp32_bytes, "%"))
L.claim(
    "with autocast at least 90 % of the peak remains at a batch of 4,096, but the batch of the symptom runs",
    autocast_bytes >= 0.9 * fp32_bytes and with_autocast.endswith("runs."),
    before=fp32_bytes / MIB,
    after=autocast_bytes / MIB,
    unit="MiB",
    source=gpulab.runs["symptom, autocast"],
)

# %% [markdown]
# The first columns show the batch of 4,096 samples, the last one the largest batch that fits on the GPU. (Each part is shown at its own maximum during the step. Gradients and activations reach theirs at different times, so the parts add up to more than the peak.) So the claim about mixed precision is half true. Autocast reduces only *activations*, and here by less than half: it also stores a 16-bit copy of each weight until the backward pass has used it, and the input keeps its size. Weights, gradients and Adam's state keep their four bytes. With 4,096 samples, these are most of the memory, and autocast saves almost nothing. With 98,304 samples, almost everything is activations, and the loop that failed at the beginning runs with its full batch.

# %% [markdown]
# ## When memory runs out
#
# ### 09.2 Five programs that run out of memory
#
# All five programs are the same small transformer in different sizes. The next cell shows their training loop; `program` holds the sizes. The first program does not fail immediately: it trains for about twenty steps and then runs out of memory. It processes its batch in one part, and it also computes a validation loss in each step. Two lists grow in this loop; does one of them matter?

# %% tags=["predict"]
import inspect
from dataclasses import replace

print(inspect.getsource(oom_programs.train_program))
L.predict("later")

# %% tags=["measure"]
later = oom_programs.OOM_PROGRAMS["later"]
oom_programs.runs_on_card(later, "later")
display(gpulab.report(gpulab.runs["later"]))
gpulab.charts.memory_over_time(gpulab.runs["later"])

# %% [markdown]
# The report examined every tensor that was alive when memory ran out, and says what refers to it. The chart shows the decisive counter: allocated memory rises from step to step. A step that is simply too large fails the first time, and a single sample that is too long does not raise memory step by step.
#
# In the fixed program, the list holds the same losses without their graphs. (The graph records how a tensor was computed; `backward()` needs it.) First check that the fixed program trains in the same way, with sizes that are small enough for the CPU.

# %% tags=["same"]
# <blank> the program that appends losses without their graphs: replace(later, keeps_graph=False)
# was: fixed = later
fixed = replace(later, keeps_graph=False)  # the loop appends validation losses after .detach()
# </blank>
all_steps_ran = oom_programs.runs_on_card(fixed, "later_fixed")
L.same(
    oom_programs.train_program(oom_programs.shrink_program(later), "cpu"),
    oom_programs.train_program(oom_programs.shrink_program(fixed), "cpu"),
)

# %% tags=["claim"]
display(L.reveal("later"))
growth_before, growth_after = (
    oom_programs.growth_per_step_bytes(gpulab.runs[name]) for name in ("later", "later_fixed")
)
L.claim(
    "with graphs in its list, the program grows by more than 512 MiB per step and runs out of memory; without them it "
    "grows by less than 1 MiB, and all 32 steps run, validation included",
    all_steps_ran and fixed.validates and growth_before > 512 * MIB and growth_after < MIB,
    before=growth_before / MIB,
    after=round(growth_after / MIB, 3),
    unit="MiB per step",
    source=gpulab.runs["later"],
)

# %% [markdown]
# ### 09.3 Which losses you may store in a list
#
# "Never append the loss itself" is the best-known advice about memory leaks. The training losses of the program above were also in a list, and did no harm. Was that because of `detach()`?

# %% tags=["predict"]
L.predict("lists")


# %% tags=["measure"]
def growth_per_step(entry, steps=9):
    """Train, and append `entry(model, loss)` to a list; return the growth per step of tensors and of the process."""
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
    optimizer, history, tensors, process = torch.optim.Adam(model.parameters()), [], [], []
    with count_live_bytes() as live:
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(256, 256)).square().mean()
            loss.backward()
            optimizer.step()
            history.append(entry(model, loss))
            tensors.append(live.bytes)
            process.append(psutil.Process().memory_info().rss)
    return tuple((line[-1] - line[2]) / (steps - 3) for line in (tensors, process))


def validation_loss(model):
    return model(torch.randn(4096, 256)).square().mean()


entries = {
    "training loss": lambda model, loss: loss,
    "validation loss": lambda model, loss: validation_loss(model),
    # <blank> append a number instead of a tensor
    # was: "validation loss, item()": lambda model, loss: validation_loss(model),
    "validation loss, item()": lambda model, loss: validation_loss(model).item(),
    # </blank>
}
growth, lines = {}, []
for name, entry in entries.items():
    growth[name], process_growth = growth_per_step(entry)
    lines.append((name, f"{growth[name]:,.0f}", f"{process_growth / MIB:.1f}"))
tables.table_view(("in the list", "tensors, bytes per step", "process (RSS), MiB per step"), lines)

# %% tags=["claim"]
display(L.reveal("lists", growth["training loss"], "bytes per step"))
L.claim(
    "a list of training losses grows by one number per step, a list of validation losses by 16 MiB of tensors, and a "
    "list of Python numbers by none",
    growth["training loss"] == 4
    and 16 * MIB <= growth["validation loss"] < 17 * MIB
    and growth["validation loss, item()"] == 0,
    before=growth["validation loss"] / MIB,
    after=growth["validation loss, item()"] / MIB,
    unit="MiB per step",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# So the list itself is not the problem. What matters is whether `backward()` was called, because it frees the tensors that the graph has saved. (The nodes of the graph, small objects in the memory of the host, remain as long as the loss does.) `.item()` returns a Python number, but makes the program wait for the GPU each time; `.detach()` does not wait. Collect detached losses, and read them every hundred steps ([07](07_host_to_device.ipynb) shows why).
#
# ### A decision tree, and four programs that fail in the first step
#
# Start at the top of this decision tree. A counter answers each question, and each answer excludes some causes.
#
# 1. **Does the first step fail?** If not, a step that fitted once should fit again. Look at the allocated memory at the start of each step.
#    - It *rises*: something is kept alive (09.3), or validation saves activations (09.5).
#    - It is *constant*, and tensor sizes vary: memory is fragmented if much of it is reserved but not allocated (09.4); otherwise one sample is longer than the others (09.9).
# 2. **If it does: do weights, gradients and optimizer state alone exceed the GPU's memory?** Then no batch is small enough. Store fewer numbers per weight, use several GPUs, or use a smaller model.
# 3. **If they do not: activations are the problem.** Try the cheapest fix first: fused attention, if attention is written as separate operators, because it changes nothing else; half precision, which also saves time, but rounds; micro-batches, whose gradients are accumulated; activation checkpointing, which computes activations again in backward and so runs the forward pass twice.
# 4. **Does another process use the GPU?** The error message names it.
# 5. **Verify the fix**: the same losses, the new peak, and the time it costs.

# %% tags=["measure"]
oom_fixes.program_table("wide", "many", "long", "more")

# %% [markdown]
# Your turn: for each of the four programs, choose the *cheapest* fix that makes it run. In order of cost:
#
# - `"detach"`: a list without graphs
# - `"fused"`: attention as one operator, which never stores its tokens x tokens scores
# - `"half"`: autocast to 16 bits
# - `"parts"`: the batch in four micro-batches
# - `"recompute"`: activation checkpointing
# - `"state"`: an optimizer that stores one number per weight instead of two
#
# gpulab runs your choice on the simulated GPU, and also every cheaper fix.

# %% tags=["exercise"]
# <blank> choose a fix for all four: chosen = {"wide": ..., "many": ..., "long": ..., "more": ...}
# was: chosen = {}
chosen = {"wide": "state", "many": "half", "long": "fused", "more": "parts"}
# </blank>
attempts = oom_fixes.try_fixes(chosen)
display(attempts)
L.score("cheapest", len(attempts.solved) if chosen else None)

# %% [markdown]
# Do the programs still train in the same way? Three of them must, within the rounding of 16 bits. The fourth one uses another optimizer, so its training differs, and only the results of your own task can tell whether that is acceptable. That is why this fix comes last.

# %% tags=["claim"]
programs = oom_programs.OOM_PROGRAMS
fixed_programs = {
    name: oom_programs.apply_fixes(programs[name], [chosen[name]]) for name in attempts.solved if name != "wide"
}
if fixed_programs:
    before, after = (
        [oom_programs.train_program(oom_programs.shrink_program(program), "cpu") for program in variant]
        for variant in ([programs[name] for name in fixed_programs], fixed_programs.values())
    )
    display(L.same(before, after, equal=0.05))
L.claim(
    "each of the 4 programs that failed in the first step runs with one fix, and with no cheaper one",
    len(attempts.solved) == 4,
    before=0,
    after=len(attempts.solved),
    unit="programs that run",
    source=gpulab.runs["attempt"],
)

# %% [markdown]
# (Micro-batches give the same gradients, unless a layer uses the whole batch, as batch normalisation does.)
#
# You are half way through: a good place for a break.

# %% [markdown]
# ## Free memory that cannot be used
#
# ### 09.4 Fragmentation
#
# This program computes features one after the other and keeps them, 72 MiB each; computing one needs 128 MiB for a moment. All 240 features take 17 GiB. The GPU has 22 GiB.

# %% tags=["predict"]
L.predict("pieces")


# %% tags=["measure"]
def features(count, preallocate, device="cuda", mib=2**18):
    """Yield features one by one; `mib` is the number of float32 values per MiB, lower for a small test."""
    storage = torch.empty(count, 72 * mib, device=device) if preallocate else None
    for index in range(count):
        raw = torch.full((128 * mib,), float(index), device=device)
        scale = raw.mean()
        del raw
        feature = storage[index] if preallocate else torch.empty(72 * mib, device=device)
        yield feature.fill_(scale)


def count_features_on_l4(name, preallocate):
    """Return how many features fit on an L4."""
    stored = []
    try:
        with gpulab.virtual_gpu("l4", name):
            stored.extend(features(240, preallocate))
    except torch.OutOfMemoryError as error:
        print(str(error).partition(" If reserved")[0])
    return len(stored)


separate_count = count_features_on_l4("allocated one by one", preallocate=False)
# <blank> allocate the memory of all features at once
# was: preallocate = False
preallocate = True
# </blank>
preallocated_count = count_features_on_l4("preallocated", preallocate)
print(f"features that fit: {separate_count} allocated one by one, {preallocated_count} preallocated")

# %% [markdown]
# Read the error: about 9 GiB are reserved but unallocated. Each feature was placed in the block that its 128 MiB had left, and the remaining 56 MiB of that block are too small for everything that follows. In your own code, the fix is to allocate the final memory first, or to use few different sizes: round lengths up, or pad batches to a handful of shapes.
#
# The other fix is a setting, `PYTORCH_ALLOC_CONF=expandable_segments:True` (before PyTorch 2.9 `PYTORCH_CUDA_ALLOC_CONF`, which still works). A *segment* is a block that PyTorch requests from the driver. With this setting there is one segment that grows: pieces of memory (20 MiB each, or 2 MiB for tensors of up to 1 MiB) are mapped into it, and free ones can be mapped again where a request fits. gpulab's virtual GPUs use PyTorch's default settings, so the next cell simulates both settings, with pieces of 2 MiB and with the allocation requests recorded on a larger GPU.

# %% tags=["measure"]
with gpulab.virtual_gpu("h100", "larger GPU"):
    stored = list(features(240, preallocate=False))
    del stored
requests = fragmentation.memory_requests(gpulab.runs["larger GPU"])
capacity_bytes = oom_programs.card_capacity_bytes("l4")
fixed_segments = fragmentation.replay_requests(requests, fragmentation.FixedSegments(capacity_bytes))
# <blank> one segment that grows: fragmentation.ExpandableSegment
# was: allocator = fragmentation.FixedSegments
allocator = fragmentation.ExpandableSegment
# </blank>
expandable = fragmentation.replay_requests(
    requests[: fixed_segments.served], allocator(capacity_bytes)
)  # until the first one fails
expandable_all = fragmentation.replay_requests(requests, allocator(capacity_bytes))
fragmentation.allocator_table(
    {"fixed segments": fixed_segments, "expandable segment": expandable},
    below="Both until the fixed segments fail. "
    f"Of all {len(requests):,} requests, the second allocator serves {expandable_all.served:,}.",
)

# %% tags=["claim"]
display(L.reveal("pieces"), L.same(list(features(6, False, "cpu", 64)), list(features(6, preallocate, "cpu", 64))))
L.claim(
    "preallocated, all 240 features fit; allocated one by one they do not. When fixed segments have no free block of "
    "128 MiB left, an expandable segment has 8 GiB, and serves all other requests",
    separate_count < 240 == preallocated_count
    and fixed_segments.largest_free_bytes < 128 * MIB
    and expandable.largest_free_bytes > 8 * 2**30
    and expandable_all.served == len(requests),
    before=fixed_segments.largest_free_bytes / MIB,
    after=expandable.largest_free_bytes / MIB,
    unit="MiB",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# ## Memory that is saved unnecessarily

# %% [markdown]
# ### 09.5 Validation that saves activations
#
# Before validation you call `model.eval()`, as everyone does.

# %% tags=["predict"]
L.predict("eval")

# %% tags=["measure"]
import contextlib


def saved_bytes_in(context, evaluating=True):
    """Return the bytes that a forward pass of the model of 09.1 saves for backward."""
    with torch.device("meta"):
        model, x = make_model().train(not evaluating), torch.empty(4096, WIDTH)
        with context:
            return memory_counters.saved_bytes(lambda: model(x), model)


# <blank> a context that saves nothing: torch.inference_mode()
# was: no_gradients = contextlib.nullcontext()
no_gradients = torch.inference_mode()
# </blank>
saved = {
    "training": saved_bytes_in(contextlib.nullcontext(), evaluating=False),
    "eval()": saved_bytes_in(contextlib.nullcontext()),
    "eval() and no_grad()": saved_bytes_in(torch.no_grad()),
    "eval() and inference_mode()": saved_bytes_in(no_gradients),
}
tables.table_view(("counted", "MiB saved"), [(name, f"{count / MIB:,.0f}") for name, count in saved.items()])

# %% tags=["claim"]
display(L.reveal("eval", saved["eval()"] / saved["training"], "%"))
L.claim(
    "with eval() alone, as many bytes are saved as in training; with inference_mode() or no_grad(), none are",
    saved["eval()"] == saved["training"] > 0 == saved["eval() and no_grad()"] == saved["eval() and inference_mode()"],
    before=saved["eval()"] / MIB,
    after=saved["eval() and inference_mode()"] / MIB,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# ## Exercise: one program, two causes
#
# This program fails for two reasons at once: 4 samples of 2,048 tokens, and layers as wide as those of the program `wide`. Run the cell without a fix and read what is wrong; then make it run on the same GPU with as few fixes as you can. The target is two.

# %% tags=["exercise"]
# <blank> a list of fixes, for example plan = ["half", "fused"]
# was: plan = []
plan = ["state", "parts"]
# </blank>
outcome = oom_fixes.try_plan(plan)
display(outcome)
L.score("fewest", outcome.count)

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 09.6 The peak of each phase
#
# The phase of the step that has the peak decides which fix can work. With 4,096 samples it was the backward pass. Now take the same model with 256.

# %% tags=["predict"]
L.predict("stage")

# %% [markdown]
# Adam has two fast implementations for GPUs. `foreach`, the default, processes all weights at once and needs temporary copies of them; `fused` does everything in one kernel, or a few for long lists, and needs none ([12](12_launch_fusion_graphs.ipynb) has more about it).

# %% tags=["measure"]
# <blank> Adam with fused=True for the first
# was: implementations = {"fused": {"foreach": True}, "foreach": {"foreach": True}}
implementations = {"fused": {"fused": True}, "foreach": {"foreach": True}}
# </blank>
fits = {
    name: gpulab.virtual.fits(partial(training, **options), "l4", 256, name=name).fit.estimate
    for name, options in implementations.items()
}
phases = ("forward", "backward", "optimizer")
lines = [
    (name, *(f"{use.bytes / MIB:,.0f}" for use in measured.phases if use.phase.value in phases))
    for name, measured in fits.items()
]
tables.table_view(("peak of allocated MiB", *phases), lines)

# %% tags=["claim"]
display(L.reveal("stage"))
fused, foreach = (fits[name].peak for name in ("fused", "foreach"))
L.claim(
    "with a small batch the peak is in the optimizer step; fused=True moves it to another phase and lowers it by 10 %",
    foreach.phase.value == "optimizer" != fused.phase.value and fused.bytes <= 0.9 * foreach.bytes,
    before=foreach.bytes / MIB,
    after=fused.bytes / MIB,
    unit="MiB",
    source=gpulab.runs["foreach"],
)

# %% [markdown]
# Here a smaller batch would not help: activations contribute almost nothing to the peak.

# %% [markdown]
# ### 09.7 cudaMalloc in every step
#
# "Build a memory pool" and "reuse tensors" are common advice. Here is a step that creates two tensors of 64 MiB, in three variants: with `empty_cache()` after each step, as people write it when memory is short; without it; and with `out=`, which writes into a buffer of its own.

# %% tags=["predict"]
L.predict("pool")


# %% tags=["measure"]
def default(x, buffer):
    torch.tanh(x @ x)


def with_empty_cache(x, buffer):
    torch.tanh(x @ x)
    torch.cuda.empty_cache()


def with_out(x, buffer):
    torch.mm(x, x, out=buffer)
    torch.tanh(buffer, out=buffer)


def allocations_per_step(name, work):
    """Return the tensors allocated and the driver calls per step, averaged over the last 8 of 12 steps."""
    with L.gpu(name):
        x, buffer = (torch.ones(4096, 4096, device="cuda") for _ in range(2))
        for step in range(12):
            if step == 4:
                before = torch.cuda.memory_stats()
            work(x, buffer)
            gpulab.step()
        after = torch.cuda.memory_stats()
    return tuple((after[counter] - before[counter]) / 8 for counter in ("allocation.all.allocated", "num_device_alloc"))


emptied = allocations_per_step("empty_cache", with_empty_cache)
# <blank> the function without empty_cache()
# was: cached = allocations_per_step("cached", with_empty_cache)
cached = allocations_per_step("cached", default)
# </blank>
reused = allocations_per_step("out", with_out)
variants = {"empty_cache()": emptied, "default": cached, "out=": reused}
lines = [(name, *(f"{count:g}" for count in counts)) for name, counts in variants.items()]
tables.table_view(("per step", "tensors", "calls to the driver"), lines, below=f"{gpulab.runs['cached'].source}.")

# %% tags=["claim"]
display(L.reveal("pool", cached[1], "calls per step"))
L.claim(
    "with empty_cache() every step calls cudaMalloc, without it no step does; out= allocates no tensors, but saves no "
    "driver calls, because there are none",
    emptied[1] >= 1 and cached[1] == 0 and cached[0] >= 2 and reused == (0, 0),
    before=emptied[1],
    after=cached[1],
    unit="calls per step",
    source=gpulab.runs["cached"],
)

# %% [markdown]
# So you need not build a pool: PyTorch has one. Reusing tensors by hand saves allocations and some of the peak, but no calls to the driver. These calls appear when the pool is discarded, by your own code or because the memory is full.
#
# ### 09.8 In-place operators, and when autograd rejects them
#
# `relu(2 * x + 1)` creates a new tensor for each of its three operators; `(2 * x).add_(1).relu_()` creates one and overwrites it. The best-known in-place layer is `nn.ReLU(inplace=True)`. How much less does it save for the backward pass?

# %% tags=["predict"]
L.predict("inplace")

# %% tags=["measure"]
torch.manual_seed(0)
x = torch.randn(2**20)
with memory_counters.count_allocations() as out_of_place:
    out_of_place_result = torch.relu(2 * x + 1)
with memory_counters.count_allocations() as in_place:
    # <blank> the same in place: add_() and relu_()
    # was: in_place_result = torch.relu(2 * x + 1)
    in_place_result = (2 * x).add_(1).relu_()
    # </blank>

gate = torch.ones(4, requires_grad=True)
try:
    torch.sigmoid(gate).mul_(2).sum().backward()
except RuntimeError as error:
    print("in place after sigmoid:", str(error).partition(":")[0])


def saved_for_backward(activation, layers=4):
    """Return the bytes that a forward pass saves for backward, on the meta device, which has no memory."""
    with torch.device("meta"):
        model = nn.Sequential(*[module for _ in range(layers) for module in (nn.Linear(1024, 1024), activation())])
        x = torch.empty(4096, 1024)
        return memory_counters.saved_bytes(lambda: model(x), model)


relu_bytes, gelu_bytes = saved_for_backward(nn.ReLU), saved_for_backward(nn.GELU)
# <blank> the same for ReLU in place, which is partial(nn.ReLU, inplace=True)
# was: in_place_bytes = saved_for_backward(nn.Identity)
in_place_bytes = saved_for_backward(partial(nn.ReLU, inplace=True))
# </blank>
tables.table_view(
    ("counted", "MiB"),
    [
        ("three operators, new tensors: allocated", out_of_place.bytes // MIB),
        ("three operators, in place: allocated", in_place.bytes // MIB),
        ("four layers with ReLU: saved for backward", relu_bytes // MIB),
        ("with in-place ReLU", in_place_bytes // MIB),
        ("with GELU", gelu_bytes // MIB),
    ],
)

# %% tags=["claim"]
display(L.reveal("inplace", 1 - in_place_bytes / relu_bytes, "%"), L.same(out_of_place_result, in_place_result))
L.claim(
    "in place, three operators allocate 4 MiB instead of 12; but in-place ReLU saves as many bytes for backward as "
    "ReLU",
    (out_of_place.bytes, in_place.bytes) == (12 * MIB, 4 * MIB) and in_place_bytes == relu_bytes,
    before=out_of_place.bytes / MIB,
    after=in_place.bytes / MIB,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)


# %% [markdown]
# Why is there no difference? `Linear` does not save its output. `ReLU` saves its own output, which is also the input of the next layer: one tensor serves both. In-place ReLU only avoids a temporary tensor while the operator runs. `GELU` saves its input, which no other layer saves, so it needs more memory.
#
# The error above shows the risk. `sigmoid` saves its *output* for the backward pass; if you overwrite that output, you destroy what backward needs. PyTorch counts how often each tensor was written to, and raises an error. With `mul` instead of `mul_`, the code works.
#
# ### 09.9 Larger images, longer sequences
#
# How does the memory grow with the side length of an image, and with the length of a sequence? The *exponent* tells: it is 1 if twice the size takes twice the memory, and 2 if it takes four times the memory. The bytes of convolutions are counted on the meta device. Attention runs on this CPU, for which PyTorch has a fused operator, too; the table shows the peak of forward and backward.

# %% tags=["measure"]
def unfused_attention(query, key, value):
    return torch.softmax(query @ key.transpose(-2, -1) / 8, dim=-1) @ value


lengths = (256, 512, 1024, 2048)
convolution_bytes = {side // 2: sizes.conv_saved_bytes(side // 2) for side in lengths}
unfused_bytes = sizes.attention_peak_bytes(unfused_attention, lengths)
# <blank> PyTorch's fused attention: nn.functional.scaled_dot_product_attention
# was: fused_bytes = sizes.attention_peak_bytes(unfused_attention, lengths)
fused_bytes = sizes.attention_peak_bytes(nn.functional.scaled_dot_product_attention, lengths)
# </blank>
bytes_by_size = {
    "two convolutions": convolution_bytes,
    "attention, separate operators": unfused_bytes,
    "attention, fused": fused_bytes,
}
exponents = {name: memory_counters.growth_exponent(bytes_of_size) for name, bytes_of_size in bytes_by_size.items()}
lines = []
for name, exponent in exponents.items():
    bytes_of_size = bytes_by_size[name]
    ends = (bytes_of_size[min(bytes_of_size)], bytes_of_size[max(bytes_of_size)])
    lines.append((name, *(f"{end_bytes / MIB:,.1f}" for end_bytes in ends), f"{exponent:.2f}"))
tables.table_view(
    ("MiB", "smallest size", "8 times the size", "exponent"),
    lines,
    below="Images 128 to 1,024 pixels wide; sequences of 256 to 2,048 tokens. Counted here.",
)

# %% tags=["claim"]
image_exponent, unfused_exponent, fused_exponent = exponents.values()
L.claim(
    "memory grows with the square of the image side and of the sequence length (exponent 1.9 to 2.1), but with fused "
    "attention in proportion to the sequence length (at most 1.1)",
    all(1.9 <= exponent <= 2.1 for exponent in (image_exponent, unfused_exponent)) and fused_exponent <= 1.1,
    before=round(unfused_exponent, 2),
    after=round(fused_exponent, 2),
    unit="as exponent",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# So one long sample in a thousand can end a training run. Limit the length, put long samples into smaller batches (03.6), or use the fused operator, which never stores the scores.

# %% [markdown]
# ### 09.10 Three numbers for the same memory
#
# `nvidia-smi` (and `gpustat`, which uses the same driver) shows how much memory all processes have *used*. PyTorch shows how much of it PyTorch has *reserved*, and how much of that is *allocated* to tensors. After a few steps, the three numbers differ, and someone recommends `empty_cache()`.

# %% tags=["predict"]
L.predict("three")


# %% tags=["measure"]
def memory_numbers():
    """Return used, reserved and allocated bytes."""
    free, total = torch.cuda.mem_get_info()
    return total - free, torch.cuda.memory_reserved(), torch.cuda.memory_allocated()


with L.gpu("three"):
    step = training()
    for _ in range(6):
        step(4096)
    before = memory_numbers()
    print(torch.cuda.memory_summary(abbreviated=True))
    # <blank> give the cached memory back to the driver
    # was: pass
    torch.cuda.empty_cache()
    # </blank>
    after = memory_numbers()
names = ("used", "reserved", "allocated")
lines = [(name, *(f"{count / MIB:,.0f}" for count in pair)) for name, *pair in zip(names, before, after, strict=True)]
display(tables.table_view(("MiB", "before empty_cache()", "after"), lines, below=f"{gpulab.runs['three'].source}."))
gpulab.charts.memory_kinds(gpulab.runs["three"])

# %% tags=["claim"]
display(L.reveal("three"))
used_less, reserved_less = before[0] - after[0], before[1] - after[1]
L.claim(
    "empty_cache() lowers used memory by as much as reserved memory, more than 512 MiB, and allocated memory by 0",
    reserved_less > 512 * MIB and abs(used_less / reserved_less - 1) <= 0.01 and before[2] == after[2],
    before=before[0] / MIB,
    after=after[0] / MIB,
    unit="MiB used",
    source=gpulab.runs["three"],
)

# %% [markdown]
# Now you can explain the differences. Used minus reserved: the CUDA context, workspaces, and other processes (on a simulated GPU, the context is an estimate). Reserved minus allocated: memory that the next step reuses, and fragments that it cannot use. A full bar in `nvidia-smi` is neither a leak nor a reason to worry. The chart shows what the *allocated* memory was used for at the peak; to get it for your own GPU, record with `--level deep`.

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# When memory runs out, first ask whether the first step fails. If it does, compare four numbers per weight with the GPU's memory: this tells you whether any batch can fit. If it does not, look at the growth from step to step, and at reserved minus allocated memory. [08](08_mixed_precision.ipynb) covers half precision in full, [03](03_parallel_work_and_batch.ipynb) covers micro-batches, and [20](20_diagnosis_drills.ipynb) asks you to find causes on your own.

# %% tags=["card"]
L.card()
