# %% [markdown]
# # 09 Memory: anatomy, and what to do when it runs out
#
# What fills the memory of a GPU, when is it fullest, and what is the cheapest way out of an out-of-memory error? You take one training step apart by hand and are right within two percent. Then five programs run out of memory, each for a reason of its own, and a short tree leads from each error to its remedy. 55 minutes, no GPU needed; half way there is a good place for a pause.
#
# Bytes are *counted* here: they follow from sizes alone and are the same everywhere. Where a card is needed, a small one is *played*: ordinary CUDA code runs on tensors that have sizes and no numbers, and its memory is a simulation of PyTorch's allocator, the part that gives out memory. It can be filled without harm and raises PyTorch's own error; so the first half is played even if you have a GPU.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("09_memory_anatomy_and_oom")
L

# %% [markdown]
# ## The symptom
#
# An ordinary training loop. It ran on the card of a colleague; on this one, an L4 with 22 GiB, it does not. "Halve the batch until it runs", says the colleague. You would rather know what is in there.

# %% tags=["given"]
from functools import partial

import torch
from torch import nn

from gpulab.lessons.labs.memory import counters, fragmentation, oom_programs, remedies, sizes
from gpulab.lessons.labs import tables

if L.device == "cpu":
    torch.set_num_threads(1)  # what runs on the CPU here is small
WIDTH, LAYERS, MIB = 4096, 8, 2**20


def make_model(width=WIDTH, layers=LAYERS):
    blocks = [each for _ in range(layers) for each in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


def training(*, width=WIDTH, layers=LAYERS, half=False, **options):
    """Build model and optimizer; gives the function that trains one step."""
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


def on_the_card(name, batch, **options):
    """Train a step on an L4, and say how it ends."""
    try:
        with gpulab.virtual_gpu("l4", name):
            training(**options)(batch)
    except torch.OutOfMemoryError as error:
        return str(error).partition(" If reserved")[0]
    return f"A step of {batch:,} samples runs."


TOO_MANY = 96 * 1024
print(on_the_card("symptom", TOO_MANY))

# %% [markdown]
# The message says what was asked for, what the card has, what is free, what tensors hold (*allocated*), and what PyTorch keeps beside it for tensors to come (*reserved but unallocated*). It does not say what the tensors are for. That is the anatomy.
#
# ## Anatomy
#
# ### 09.1 A step taken apart by hand
#
# Take a smaller batch, 4,096 samples. The weights of this model are 512 MiB, and one layer's output for that batch is 64 MiB. Guess before you count: how much is in use when most is?

# %% tags=["predict"]
L.predict("guess")

# %% [markdown]
# Now by hand.
#
# - **Weights**, and beside each of them two numbers of Adam: these are always there.
# - **Activations**: what forward leaves for backward. A `Linear` keeps its input, because the gradient of its weights is worked out from it. A `GELU` keeps its own input. So each of the eight layers leaves two tensors as large as its output, and the last `Linear` leaves one.
# - **A temporary**: the gradient that backward hands from layer to layer, as large as one output.
# - **Gradients** of the weights are what most people get wrong. When backward begins, all activations are there and not one gradient. Each layer then makes a gradient of 64 MiB and gives back 128 MiB of activations. So memory falls from there on, and gradients and activations are never there together in full.
#
# The weights are counted on the *meta* device: tensors there have a shape and no memory, so a model of any size can be counted on any machine.

# %% tags=["worked"]
batch, number = 4096, 4  # a float32 has four bytes

with torch.device("meta"):
    weights = sum(each.numel() for each in make_model().parameters())

layer = batch * WIDTH * number  # one layer's output
by_hand = {
    "parameters": weights * number,
    "optimizer": 2 * weights * number,
    "activations": (2 * LAYERS + 1) * layer,
    "temporaries": layer,
}
# <fix>
# was: peak_by_hand = sum(by_hand.values()) + weights * number
peak_by_hand = sum(by_hand.values())  # and no gradients: they come as activations go
# </fix>
print(f"by hand: {peak_by_hand / MIB:,.0f} MiB")

# %% [markdown]
# `gpulab.virtual.fits` plays the step on a card without a limit and tells every byte by what it is for. Below are its figures beside yours, and by phase of the step: read there what is in memory together. (`counted` alone, at the end of a cell, shows its whole report.)

# %% tags=["measure"]
counted = gpulab.virtual.fits(training, "l4", batch, name="by hand")
peak = counted.fit.measured.peak
display(sizes.beside(by_hand, counted.fit.measured))
sizes.by_phase(counted.fit.measured)

# %% tags=["claim"]
display(L.reveal("guess", peak.bytes / 2**30, "GiB"))
L.claim(
    "the peak worked out by hand is within 2 % of the peak that is counted",
    abs(peak_by_hand / peak.bytes - 1) <= 0.02,
    before=peak_by_hand / MIB,
    after=peak.bytes / MIB,
    unit="MiB",
    source=gpulab.runs["by hand"],
)

# %% [markdown]
# What is *needed* is more than what is in use: also what PyTorch holds without using it, work space of cuBLAS (the library that multiplies matrices), and the CUDA context, which a process pays for touching the GPU at all. The last two are allowances with a source, not counts.
#
# The same arithmetic tells whether a model fits that no laptop could build. This one has weights of 9.3 GiB. Its batch is small, so most is there in the optimizer's update, with all gradients and hardly an activation. How many numbers does training then keep for each weight?

# %% tags=["exercise"]
# <blank> how many numbers for each weight, itself included?
# was: numbers_each = 1
numbers_each = 4  # the weight, its gradient, and two of Adam
# </blank>
with torch.device("meta"):
    many = sum(each.numel() for each in make_model(width=8192, layers=37).parameters())
states_by_hand = numbers_each * number * many

large = gpulab.virtual.fits(partial(training, width=8192, layers=37), "h100", 1024, name="large")
most = sizes.most_mib(large.fit.measured)
states = (most["parameters"] + most["gradients"] + most["optimizer"]) * MIB
print(
    f"weights {many * number / 2**30:.1f} GiB; by hand {states_by_hand / 2**30:.1f} GiB; counted {states / 2**30:.1f}"
)
print(f"on an H100: {large.verdict}; an L4 has 22 GiB in all")

# %% tags=["claim"]
L.claim(
    "for a model of 9 GiB that was never built, weights, gradients and optimizer state are right within 2 %",
    many * number > 9 * 2**30 and abs(states_by_hand / states - 1) <= 0.02,
    before=states_by_hand / 2**30,
    after=states / 2**30,
    unit="GiB",
    source=gpulab.runs["large"],
)

# %% [markdown]
# You will often read that mixed precision halves memory and doubles the batch. Mixed precision (notebook [08](08_mixed_precision.ipynb)) lets matrix products work in sixteen bits, half the bytes; in PyTorch, `autocast` chooses which. Look at the four parts above and predict, for the batch of 4,096.

# %% tags=["predict"]
L.predict("amp")

# %% tags=["measure"]
# <fix>
# was: asked = 8 * batch
asked = batch
# </fix>
found = {
    name: gpulab.virtual.max_batch(partial(training, half=name == "autocast"), "l4", asked).found
    for name in ("float32", "autocast")
}
plain, halved = (each.tried[0].peak.bytes for each in found.values())  # each search begins with the batch asked for
again = on_the_card("symptom, autocast", TOO_MANY, half=True)
print(again)
sizes.in_turn(found)

# %% tags=["claim"]
display(L.reveal("amp", halved / plain, "%"))
L.claim(
    "autocast leaves at least nine tenths of the peak at a batch of 4,096; it lets the batch of the symptom run",
    halved >= 0.9 * plain and again.endswith("runs."),
    before=plain / MIB,
    after=halved / MIB,
    unit="MiB",
    source=gpulab.runs["symptom, autocast"],
)

# %% [markdown]
# The table is for 4,096 samples; its last column is what the card has room for. So the saying is half true. Autocast shrinks *activations*, and not by half here: it also keeps a copy of each weight in sixteen bits until backward is done, and the input stays as it was. Weights, gradients and Adam's numbers keep their four bytes. With 4,096 samples that is most of it, and next to nothing is gained. With 98,304 nearly everything is activations, and the loop that failed at the beginning runs with its whole batch.
#
# ### 09.10 The peak of each part of a step
#
# Which part of the step holds the peak decides which remedy can work. With 4,096 samples it was backward. Now the same model with 256.

# %% tags=["predict"]
L.predict("stage")

# %% [markdown]
# Adam has two forms on a GPU. `foreach`, the usual one, works on all weights at once and needs temporary copies of them; `fused` is one piece of GPU code that needs none ([12](12_launch_fusion_graphs.ipynb) has more of that).

# %% tags=["measure"]
# <fix>
# was: forms = {"fused": {"foreach": True}, "foreach": {"foreach": True}}
forms = {"fused": {"fused": True}, "foreach": {"foreach": True}}
# </fix>
by_form = {
    name: gpulab.virtual.fits(partial(training, **form), "l4", 256, name=name).fit.measured
    for name, form in forms.items()
}
phases = ("forward", "backward", "optimizer")
lines = [
    (name, *(f"{use.bytes / MIB:,.0f}" for use in told.phases if use.phase.value in phases))
    for name, told in by_form.items()
]
tables.rows(("MiB in use at most", *phases), lines)

# %% tags=["claim"]
display(L.reveal("stage"))
fused, foreach = (by_form[name].peak for name in ("fused", "foreach"))
L.claim(
    "with a small batch the peak is in the optimizer's update; fused=True takes it out of there "
    "and lowers it by a tenth",
    foreach.phase.value == "optimizer" != fused.phase.value and fused.bytes <= 0.9 * foreach.bytes,
    before=foreach.bytes / MIB,
    after=fused.bytes / MIB,
    unit="MiB",
    source=gpulab.runs["foreach"],
)

# %% [markdown]
# Here a smaller batch would change nothing: activations have hardly a part in the peak.
#
# ## When it runs out
#
# ### 09.2 Five programs that run out of memory
#
# All five are the same small transformer in other sizes. Below is their loop; `program` holds the sizes. The first one does not fail at once: it trains for some twenty steps and then runs out. Its batch comes in one part, and `program.validates` is true. Two lists grow in there; does one of them matter?

# %% tags=["predict"]
import inspect
from dataclasses import replace

print(inspect.getsource(oom_programs.train))
L.predict("later")

# %% tags=["measure"]
later = oom_programs.CASES["later"]
oom_programs.fits(later, "later")
display(gpulab.report(gpulab.runs["later"]))
gpulab.charts.memory_over_time(gpulab.runs["later"])

# %% [markdown]
# The report looked at every tensor that was alive when memory ran out, and says who holds it. The chart shows the counter that says *kept*: memory in use rises from step to step. A step that is merely too large fails the first time, and a sample that is too long leaves no slope.
#
# Below the list holds the same losses without their graphs. (A graph is what a tensor was computed from; `backward()` walks it.) First whether the program still trains the same, small enough for the CPU.

# %% tags=["same"]
# <fix>
# was: fixed = later
fixed = replace(later, keeps_graphs=False)  # in the loop: history.append(seen.detach())
# </fix>
ran_to_its_end = oom_programs.fits(fixed, "later_fixed")
L.same(oom_programs.train(oom_programs.small(later), "cpu"), oom_programs.train(oom_programs.small(fixed), "cpu"))

# %% tags=["claim"]
display(L.reveal("later"))
rise_before, rise_after = (oom_programs.rise_bytes(gpulab.runs[name]) for name in ("later", "later_fixed"))
L.claim(
    "with graphs in its list the program grows by more than 512 MiB a step and runs out; without them by less than "
    "1 MiB, and it trains all of its 32 steps",
    ran_to_its_end and rise_before > 512 * MIB and rise_after < MIB,
    before=rise_before / MIB,
    after=round(rise_after / MIB, 3),
    unit="MiB a step",
    source=gpulab.runs["later"],
)

# %% [markdown]
# ### 09.6 Which losses may be kept in a list
#
# "Never append the loss itself" is the best known advice on leaks. The losses of the training above were in a list too, and did no harm. Was that because of their `detach()`?

# %% tags=["predict"]
L.predict("lists")


# %% tags=["measure"]
def collecting(kept, steps=9):
    """Train, and append to a list in every step what `kept` makes of model and loss."""
    with torch.device("cuda"):
        model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024))
    optimizer, history = torch.optim.Adam(model.parameters()), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(1024, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        history.append(kept(model, loss))


def held_out_loss(model):
    return model(torch.randn(4096, 1024, device="cuda")).square().mean()


lists = {
    "training loss": lambda model, loss: loss,
    "validation loss": lambda model, loss: held_out_loss(model),
    # <fix>
    # was: "validation loss, item()": lambda model, loss: held_out_loss(model),
    "validation loss, item()": lambda model, loss: held_out_loss(model).item(),
    # </fix>
}
growth = {}
for name, kept in lists.items():
    with L.gpu(name):
        collecting(kept)
    growth[name] = oom_programs.rise_bytes(gpulab.runs[name])
tables.rows(("in the list", "bytes more in each step"), [(name, f"{count:,}") for name, count in growth.items()])

# %% tags=["claim"]
display(L.reveal("lists", growth["training loss"], "bytes a step"))
L.claim(
    "a list of training losses grows by one number a step, of validation losses by more than 32 MiB, "
    "of plain numbers by nothing",
    growth["training loss"] == 512 and growth["validation loss"] > 32 * MIB and growth["validation loss, item()"] == 0,
    before=growth["validation loss"] / MIB,
    after=growth["validation loss, item()"] / MIB,
    unit="MiB a step",
    source=gpulab.runs["validation loss"],
)

# %% [markdown]
# So what counts is not the list but whether `backward()` was called: it lets go of the graph. `.item()` takes the number out and makes the program wait for the GPU each time; `.detach()` does not wait. Collect detached losses, and read them every hundred steps ([07](07_host_to_device.ipynb) shows why).
#
# ### The tree, and four programs that fail at once
#
# A tree to be walked from the top. Every question is answered by a counter, and every answer rules something out.
#
# 1. **Does the first step fail?** If not, what fits once should fit again. Look at memory in use where each step begins.
#    - It *rises*: something is kept (09.6), or validation keeps what nobody needs (09.8).
#    - It is *flat*, and sizes vary: memory in pieces, if much is reserved and not allocated (09.3); else one sample that is longer than the others (09.7).
# 2. **It does. Are weights, gradients and the optimizer's numbers alone more than the card?** Then no batch is small enough. Keep fewer numbers for each weight, use several GPUs, or a smaller model.
# 3. **They are not: then it is the activations.** Cheapest first: half precision, which saves time too; fused attention, where the formula is written out; the batch in parts, one after the other, whose gradients add up; activations computed again in backward instead of kept, which is forward twice.
# 4. **Does another process use the card?** The error names it.
# 5. **Check again**: the same losses, the new peak, and what it cost.

# %% tags=["measure"]
remedies.known("wide", "many", "long", "more")

# %% [markdown]
# Your turn: for each of the four, the *cheapest* remedy that makes it run. In the order of their price:
#
# - `"detach"`: a list without graphs
# - `"half"`: autocast to sixteen bits
# - `"fused"`: attention as one operator, which never writes down its tokens x tokens scores
# - `"parts"`: the batch in four parts
# - `"recompute"`: activations computed again in backward
# - `"state"`: an optimizer that keeps one number for each weight instead of two
#
# What you choose is run on the card, and so is everything cheaper.

# %% tags=["exercise"]
# <blank> fill in all four: chosen = {"wide": ..., "many": ..., "long": ..., "more": ...}
# was: chosen = {}
chosen = {"wide": "state", "many": "half", "long": "fused", "more": "parts"}
# </blank>
came = remedies.tried(chosen)
display(came)
L.score("cheapest", len(came.right) if chosen else None)

# %% [markdown]
# Do they still train the same? Three of them must, within the rounding of sixteen bits. The fourth has another optimizer and is another training: there, only the results of your own task tell. That is why it comes last.

# %% tags=["claim"]
repaired = {name: oom_programs.mended(oom_programs.CASES[name], [chosen[name]]) for name in came.right if name != "wide"}
if repaired:
    before, after = [oom_programs.CASES[name] for name in repaired], repaired.values()
    display(L.same(*([oom_programs.train(oom_programs.small(each), "cpu") for each in some] for some in (before, after)), equal=0.05))
L.claim(
    "each of the four that failed in their first step runs with one remedy, and with none that is cheaper",
    len(came.right) == 4,
    before=0,
    after=len(came.right),
    unit="programs that run",
    source=gpulab.runs["attempt"],
)

# %% [markdown]
# (Parts give the same gradients, except where a layer looks at the whole batch, as batch normalisation does.)
#
# This is half way, and a good place for a pause.
#
# ## Free memory that cannot be had
#
# ### 09.3 Memory in pieces
#
# Features are computed one after the other and kept, 72 MiB each; computing one needs 128 MiB for a moment. All 240 take 17 GiB. The card has 22.

# %% tags=["predict"]
L.predict("pieces")


# %% tags=["measure"]
def features(count, room_first, device="cuda", mib=2**18):
    """One after the other. `mib`: numbers in a MiB of float32; fewer make the same program small."""
    room = torch.empty(count, 72 * mib, device=device) if room_first else None
    for place in range(count):
        raw = torch.full((128 * mib,), float(place), device=device)
        scale = raw.mean()
        del raw
        made = room[place] if room_first else torch.empty(72 * mib, device=device)
        yield made.fill_(scale)


def kept_on_the_card(name, room_first):
    """How many features the card could keep."""
    kept = []
    try:
        with gpulab.virtual_gpu("l4", name):
            kept.extend(features(240, room_first))
    except torch.OutOfMemoryError as error:
        print(str(error).partition(" If reserved")[0])
    return len(kept)


as_they_come = kept_on_the_card("as they come", room_first=False)
# <fix>
# was: room_first = False
room_first = True
# </fix>
in_a_row = kept_on_the_card("in a row", room_first)
print(f"kept: {as_they_come} as they come, {in_a_row} with room made first")

# %% [markdown]
# Read the error: some 9 GiB are reserved and unallocated. Each piece of features went into the hole that its 128 MiB had left, and what remains of that hole, 56 MiB, is too small for all that follows. The remedy in your own code is to make room first, or to use few sizes: round lengths up, pad batches to a handful of shapes.
#
# The remedy in a setting is `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. A *segment* is what PyTorch asks of the driver in one piece. With this setting there is one that grows: memory is mapped into it in pages of 2 MiB, and pages that are free can be moved to where a request fits. Played cards have PyTorch's default settings; so here both ways are simulated, with the requests that a roomier card recorded.

# %% tags=["measure"]
with gpulab.virtual_gpu("h100", "roomy"):
    kept = list(features(240, room_first=False))
    del kept
requests = fragmentation.requests_of(gpulab.runs["roomy"])
card_bytes = oom_programs.room_bytes("l4")
fixed_segments = fragmentation.play(requests, fragmentation.FixedSegments(card_bytes))
# <fix>
# was: allocator = fragments.FixedSegments
allocator = fragmentation.GrowingSegment
# </fix>
growing = fragmentation.play(requests[: fixed_segments.done], allocator(card_bytes))  # up to where the first one ends
served = fragmentation.play(requests, allocator(card_bytes))
fragmentation.beside(
    {"fixed segments": fixed_segments, "a segment that grows": growing},
    below="Both up to where the first one ends. "
    f"The second one then serves {served.done:,} of {len(requests):,} requests.",
)

# %% tags=["claim"]
display(L.reveal("pieces"), L.same(list(features(6, False, "cpu", 64)), list(features(6, room_first, "cpu", 64))))
L.claim(
    "with room made first the card keeps all 240 features, and as they come it does not; where fixed segments have no "
    "free piece of 128 MiB left, one that grows has 8 GiB, and serves the rest",
    as_they_come < 240 == in_a_row
    and fixed_segments.largest_free_bytes < 128 * MIB
    and growing.largest_free_bytes > 8 * 2**30
    and served.done == len(requests),
    before=fixed_segments.largest_free_bytes / MIB,
    after=growing.largest_free_bytes / MIB,
    unit="MiB",
    source=gpulab.lessons.SIMULATED,
)

# %% [markdown]
# ### 09.4 Asking for memory in every step
#
# "Build a memory pool" and "reuse tensors" are common advice. Here is a step that makes two tensors of 64 MiB, three times: with `empty_cache()` after each step, as people write it when memory is short; without; and with `out=`, into a buffer of its own.

# %% tags=["predict"]
L.predict("pool")


# %% tags=["measure"]
def as_it_is(x, buffer):
    torch.tanh(x @ x)


def forgetting(x, buffer):
    torch.tanh(x @ x)
    torch.cuda.empty_cache()


def reusing(x, buffer):
    torch.mm(x, x, out=buffer)
    torch.tanh(buffer, out=buffer)


def settled(name, work):
    """Tensors asked for, and calls to the driver, in each of the last eight steps of twelve."""
    with L.gpu(name):
        x, buffer = (torch.ones(4096, 4096, device="cuda") for _ in range(2))
        for step in range(12):
            if step == 4:
                before = torch.cuda.memory_stats()
            work(x, buffer)
            gpulab.step()
        after = torch.cuda.memory_stats()
    return tuple((after[each] - before[each]) / 8 for each in ("allocation.all.allocated", "num_device_alloc"))


forgets = settled("forgets", forgetting)
# <fix>
# was: keeps = settled("keeps", forgetting)
keeps = settled("keeps", as_it_is)
# </fix>
reuses = settled("reuses", reusing)
lines = [(name, *(f"{each:g}" for each in told)) for name, told in {
    "empty_cache()": forgets, "as it is": keeps, "out=": reuses
}.items()]  # fmt: skip
tables.rows(("in each step", "tensors", "calls to the driver"), lines, below=f"{gpulab.runs['keeps'].source}.")

# %% tags=["claim"]
display(L.reveal("pool", keeps[1]))
L.claim(
    "empty_cache() in the loop asks the driver again in every step, and without it no step does; out= asks for no "
    "tensor at all, and has no call to the driver left to save",
    forgets[1] >= 1 and keeps[1] == 0 and keeps[0] >= 2 and reuses == (0, 0),
    before=forgets[1],
    after=keeps[1],
    unit="calls a step",
    source=gpulab.runs["keeps"],
)

# %% [markdown]
# So much for "build a pool": PyTorch is one. Reuse by hand saves tensors and some of the peak, but no calls to the driver. Those come from a pool that is thrown away, by you or because the card is full.
#
# ## Memory that is kept for nothing
#
# ### 09.5 In place, and when autograd says no
#
# `relu(2 * x + 1)` makes a new tensor for each of its three operators; `(2 * x).add_(1).relu_()` makes one and writes over it. The best known layer of that kind is `nn.ReLU(inplace=True)`. How much less does it keep for backward?

# %% tags=["predict"]
L.predict("inplace")

# %% tags=["measure"]
torch.manual_seed(0)
x = torch.randn(2**20)
with counters.allocations() as apart:
    one = torch.relu(2 * x + 1)
with counters.allocations() as written_over:
    # <fix>
    # was: other = torch.relu(2 * x + 1)
    other = (2 * x).add_(1).relu_()
    # </fix>

gate = torch.ones(4, requires_grad=True)
try:
    torch.sigmoid(gate).mul_(2).sum().backward()
except RuntimeError as error:
    print("in place after sigmoid:", str(error).partition(":")[0])


def kept_by(activation, layers=4):
    """Bytes that a forward pass keeps for backward; on the meta device, which has no memory."""
    with torch.device("meta"):
        model = nn.Sequential(*[each for _ in range(layers) for each in (nn.Linear(1024, 1024), activation())])
        x = torch.empty(4096, 1024)
        return counters.saved_bytes(lambda: model(x), model)


relu_bytes, gelu_bytes = kept_by(nn.ReLU), kept_by(nn.GELU)
# <fix>
# was: in_place_bytes = gelu_bytes
in_place_bytes = kept_by(partial(nn.ReLU, inplace=True))
# </fix>
tables.rows(
    ("counted", "MiB"),
    [
        ("three operators, new tensors: asked for", apart.bytes // MIB),
        ("three operators, in place: asked for", written_over.bytes // MIB),
        ("four layers with ReLU: kept for backward", relu_bytes // MIB),
        ("with ReLU in place", in_place_bytes // MIB),
        ("with GELU", gelu_bytes // MIB),
    ],
)

# %% tags=["claim"]
display(L.reveal("inplace", 1 - in_place_bytes / relu_bytes, "%"), L.same(one, other))
L.claim(
    "in place, three operators ask for 4 MiB instead of 12; and ReLU in place keeps as much for backward as ReLU",
    (apart.bytes, written_over.bytes) == (12 * MIB, 4 * MIB) and in_place_bytes == relu_bytes,
    before=apart.bytes / MIB,
    after=written_over.bytes / MIB,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)


# %% [markdown]
# Why nothing? `Linear` does not keep its output, and `ReLU` keeps its own, which is the next layer's input anyway: one tensor for both. What in place saves is a tensor for the moment of the operator. `GELU` keeps its input, which nobody else does, and is the dearer one here.
#
# The error above is the catch. `sigmoid` keeps its *output* for backward; whoever writes over it takes away what backward needs. PyTorch counts how often each tensor was written to, and stops. With `mul` instead of `mul_` it works.
#
# ### 09.7 Larger images, longer sequences
#
# How does memory grow with the side of an image, and with the length of a sequence? The *exponent* says it: 1 if twice the size takes twice the memory, 2 if it takes four times. Convolutions are counted on the meta device. Attention runs on a GPU, because PyTorch chooses the fused operator there; the peak of forward and backward is read.

# %% tags=["measure"]
def written(query, key, value):
    return torch.softmax(query @ key.transpose(-2, -1) / 8, dim=-1) @ value


lengths = (512, 1024, 2048, 4096)
by_side = {side // 4: sizes.image_bytes(side // 4) for side in lengths}
with L.gpu("attention_written"):
    by_length = sizes.attention_peaks(written, lengths)
with L.gpu("attention_fused"):
    # <fix>
    # was: fused_by_length = sizes.attention_peaks(written, lengths)
    fused_by_length = sizes.attention_peaks(nn.functional.scaled_dot_product_attention, lengths)
    # </fix>
grown = {"two convolutions": by_side, "attention, written out": by_length, "attention, fused": fused_by_length}
exponents = {name: counters.exponent(each) for name, each in grown.items()}
tables.rows(
    ("MiB", "at first", "8 times the size", "exponent"),
    [
        (name, *(f"{grown[name][size] / MIB:,.0f}" for size in (min(grown[name]), max(grown[name]))), f"{power:.2f}")
        for name, power in exponents.items()
    ],
    below="Images 128 to 1,024 pixels wide, counted; sequences of 512 to 4,096 tokens, "
    f"{gpulab.runs['attention_fused'].source}.",
)

# %% tags=["claim"]
side_power, written_power, fused_power = exponents.values()
L.claim(
    "memory goes with the square of an image's side and of a sequence's length (exponent 1.9 to 2.1), "
    "and with fused attention with the length itself (at most 1.1)",
    all(1.9 <= each <= 2.1 for each in (side_power, written_power)) and fused_power <= 1.1,
    before=round(written_power, 2),
    after=round(fused_power, 2),
    unit="as exponent",
    source=gpulab.runs["attention_fused"],
)

# %% [markdown]
# So one long sample in a thousand decides whether a training run survives. Sort by length, cap it, or use the fused operator, which never writes the scores down.
#
# ### 09.8 Validation that keeps what nobody needs
#
# Before validation you call `model.eval()`, as everybody does.

# %% tags=["predict"]
L.predict("eval")

# %% tags=["measure"]
import contextlib


def kept_in(context, evaluating=True):
    """Bytes that a forward pass of the model of 09.1 keeps for backward."""
    with torch.device("meta"):
        model, x = make_model().train(not evaluating), torch.empty(batch, WIDTH)
        with context:
            return counters.saved_bytes(lambda: model(x), model)


# <fix>
# was: quiet = contextlib.nullcontext()
quiet = torch.inference_mode()
# </fix>
kept = {
    "training": kept_in(contextlib.nullcontext(), evaluating=False),
    "eval()": kept_in(contextlib.nullcontext()),
    "eval() and no_grad()": kept_in(torch.no_grad()),
    "eval() and inference_mode()": kept_in(quiet),
}
tables.rows(("counted", "bytes kept"), [(name, f"{count:,}") for name, count in kept.items()])

# %% tags=["claim"]
display(L.reveal("eval", kept["eval()"] / kept["training"], "%"))
L.claim(
    "eval() alone keeps every byte that training keeps; inference_mode() and no_grad() keep none",
    kept["eval()"] == kept["training"] > 0 == kept["eval() and no_grad()"] == kept["eval() and inference_mode()"],
    before=kept["eval()"] / MIB,
    after=kept["eval() and inference_mode()"] / MIB,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# ## Reading the instruments
#
# ### 09.9 Three numbers for one memory
#
# `nvidia-smi` (and `gpustat`, which asks the same driver) shows what is *used*, by all processes. PyTorch says what it has *reserved* of that, and what it has *allocated* to tensors. After a few steps the three differ, and somebody advises `empty_cache()`.

# %% tags=["predict"]
L.predict("three")


# %% tags=["measure"]
def three_numbers():
    """Used, reserved and allocated bytes."""
    free, total = torch.cuda.mem_get_info()
    return total - free, torch.cuda.memory_reserved(), torch.cuda.memory_allocated()


with L.gpu("three"):
    step = training()
    for _ in range(3):
        step(batch)
    before = three_numbers()
    print(torch.cuda.memory_summary(abbreviated=True))
    # <fix>
    # was: pass
    torch.cuda.empty_cache()
    # </fix>
    after = three_numbers()
names = ("used", "reserved", "allocated")
lines = [(name, *(f"{each / MIB:,.0f}" for each in pair)) for name, *pair in zip(names, before, after, strict=True)]
display(tables.rows(("MiB", "before empty_cache()", "after"), lines, below=f"{gpulab.runs['three'].source}."))
gpulab.charts.memory_kinds(gpulab.runs["three"])

# %% tags=["claim"]
display(L.reveal("three"))
returned, let_go = before[0] - after[0], before[1] - after[1]
L.claim(
    "empty_cache() lowers what nvidia-smi shows by what PyTorch lets go, more than 512 MiB, and takes no tensor a byte",
    let_go > 512 * MIB and abs(returned / let_go - 1) <= 0.01 and before[2] == after[2],
    before=before[0] / MIB,
    after=after[0] / MIB,
    unit="MiB used",
    source=gpulab.runs["three"],
)

# %% [markdown]
# So the differences are assigned. Used less reserved: the context, work spaces, and other processes (on a played card the context is an allowance). Reserved less allocated: what the next step uses again, and pieces that it cannot. A full bar in `nvidia-smi` is neither a leak nor a reason to worry. The chart has what *allocated* was for when most was given out; on a GPU of your own, record with `--level deep` for it.
#
# ## Make: one program, two reasons
#
# This one fails for two reasons at once: 4 samples of 2,048 tokens, and layers as wide as those of the first of the four. Run the cell without a remedy and read what is wrong; then make it run on the same card with as few remedies as you can. Par is two.

# %% tags=["exercise"]
# <blank> a list of remedies, as in plan = ["half", "fused"]
# was: plan = []
plan = ["state", "parts"]
# </blank>
outcome = remedies.planned(plan)
display(outcome)
L.score("fewest", outcome.count)

# %% [markdown]
# ## Another symptom

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## What you take with you
#
# When memory runs out, ask first whether the first step fails. If it does, four numbers for each weight against the card tell whether any batch can help. If it does not, the slope from step to step, and reserved less allocated, tell what is kept. [08](08_mixed_precision.ipynb) has the cheapest remedy in full, [03](03_parallel_work_and_batch.ipynb) the batch in parts, and [20](20_diagnosis_drills.ipynb) asks you for the cause without telling.

# %% tags=["card"]
L.card()
