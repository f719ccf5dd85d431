# %% [markdown]
# # 09 Memory: anatomy, and what to do when it runs out
#
# What fills the memory of a GPU, when is it fullest, and what is the cheapest way out of an out-of-memory error? You take one training step apart by hand and are right within two percent. Then five programs run out of memory, each for a reason of its own, and a short tree leads from each error to its remedy. 55 minutes, no GPU needed.
#
# Two kinds of figures appear here. Bytes are *counted*: they follow from sizes alone, and are the same everywhere. And where a card is needed, a small one is *played*: ordinary CUDA code runs on tensors that have sizes and no numbers, and the card's memory is a simulation of PyTorch's allocator. A played card can be filled without harm, and raises PyTorch's own error; so the cards in the first half are played even if you have a GPU.

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

if L.device == "cpu":
    torch.set_num_threads(1)  # what runs on the CPU here is small
WIDTH, LAYERS = 4096, 8


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


# %% tags=["given"]
try:
    with gpulab.virtual_gpu("l4", "symptom"):
        step = training()
        step(96 * 1024)
except torch.OutOfMemoryError as error:
    print(str(error).partition(" If reserved")[0])

# %% [markdown]
# The message has five numbers: what was asked for, what the card has, what is free, what tensors hold (*allocated*) and what PyTorch keeps beside it (*reserved but unallocated*). It does not say what the tensors are for. That is the anatomy.
#
# ## Anatomy
#
# ### 09.1 A step taken apart by hand
#
# Two questions before you count.

# %% tags=["predict"]
from IPython.display import display

display(L.predict("weights"), L.predict("amp"))

# %% [markdown]
# Now by hand, for a batch of 4096. The weights are counted on the *meta* device: tensors there have a shape and no memory, so a model of any size can be counted on any machine.
#
# - **Weights**, and beside each of them two numbers of Adam: these are always there.
# - **Activations**: what forward leaves for backward. A `Linear` keeps its input, to work out the gradient of its weights. A `GELU` keeps its own input. So each layer leaves two tensors as large as its output, and the last `Linear` leaves one.
# - **Temporaries**: one layer's output more, for the gradient that backward hands from layer to layer.
# - **Gradients**: this is the part where most people go wrong. When backward begins, all activations are there and not one gradient. Each layer then gives back its activations as it makes its gradient. The two never meet in full.

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
for part, count in by_hand.items():
    print(f"{part:12} {count / 2**20:7,.0f} MiB")

# %% [markdown]
# `gpulab.virtual.fits` plays the step on a card without a limit and tells every byte by what it is for. Compare its tables with yours.

# %% tags=["measure"]
fit = gpulab.virtual.fits(training, "l4", batch)
peak = fit.fit.measured.peak
print(fit)  # `fit` alone, at the end of a cell, shows the same with bars
gpulab.charts.memory_kinds(gpulab.runs["virtual L4"])

# %% tags=["claim"]
L.claim(
    "the peak worked out by hand is within 2 % of the peak that is counted",
    abs(peak_by_hand / peak.bytes - 1) <= 0.02,
    before=peak_by_hand / 2**20,
    after=peak.bytes / 2**20,
    unit="MiB",
    source=gpulab.runs["virtual L4"],
)

# %% [markdown]
# In use is not yet needed: the table also has what PyTorch holds without using it, workspaces of cuBLAS, and the CUDA context, which a process pays for touching the GPU at all. The last two are allowances with a source, not counts. Read the table by phase once more, and decide:

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("meet", answer)

# %% [markdown]
# The same arithmetic tells whether a model fits that no laptop could build. This one has weights of 9.3 GiB. How many numbers does training keep for each weight?

# %% tags=["measure"]
# <fix>
# was: numbers_each = 1
numbers_each = 4  # the weight, its gradient, and two of Adam
# </fix>
with torch.device("meta"):
    many = sum(each.numel() for each in make_model(width=8192, layers=37).parameters())
states_by_hand = numbers_each * number * many

large_fit = gpulab.virtual.fits(partial(training, width=8192, layers=37), "h100", 1024)
update = next(use for use in large_fit.fit.measured.phases if use.phase.value == "optimizer")
states = sum(held for role, held in update.by_role.items() if role.value in ("parameters", "gradients", "optimizer"))
print(f"weights: {many * number / 2**30:.1f} GiB; by hand: {states_by_hand / 2**30:.1f} GiB")
print(f"counted: {states / 2**30:.1f} GiB; on an H100: {large_fit.verdict}; an L4 has 22 GiB in all")

# %% tags=["claim"]
L.claim(
    "for a model of 9 GiB that was never built, weights, gradients and optimizer state are right within 2 %",
    many * number > 9 * 2**30 and abs(states_by_hand / states - 1) <= 0.02,
    before=states_by_hand / 2**30,
    after=states / 2**30,
    unit="GiB",
    source=gpulab.runs["virtual H100 SXM"],
)

# %% [markdown]
# You will often read that mixed precision halves memory and doubles the batch. Test it on this program, at this batch, and at one eight times as large.

# %% tags=["measure"]
# <fix>
# was: asked = 8 * batch
asked = batch
# </fix>
tried, found = {}, {}
for half in (False, True):
    program = partial(training, half=half)
    found[half] = gpulab.virtual.max_batch(program, "l4", asked)  # begins with this batch
    tried[half] = found[half].found.tried[0]
    most = {}
    for use in tried[half].phases:
        for role, held in use.by_role.items():
            most[role.value] = max(most.get(role.value, 0), held)
    parts = ", ".join(f"{part} {held / 2**20:,.0f}" for part, held in most.items() if part != "temporaries")
    peak = tried[half].peak
    print(f"{'autocast' if half else 'float32'}: {parts} MiB at most")
    print(f"    the peak is {peak.bytes / 2**20:,.0f} MiB, in {peak.phase.value}")
left = tried[True].peak.bytes / tried[False].peak.bytes
line = [each.found.fixed_bytes + 8 * batch * each.found.sample_bytes for each in found.values()]
print(f"left of the peak: {left:.0%} at a batch of {asked:,}; {line[1] / line[0]:.0%} at {8 * batch:,}")
plain, halved = found[False].batch, found[True].batch
print(f"largest batch: {plain:,} -> {halved:,}, {halved / plain:.1f} times")

# %% tags=["claim"]
L.claim(
    "autocast leaves at least nine tenths of this program's peak: it does not halve memory",
    left >= 0.9,
    before=tried[False].peak.bytes / 2**20,
    after=tried[True].peak.bytes / 2**20,
    unit="MiB",
    source=gpulab.runs["virtual L4"],
)

# %% tags=["reveal"]
display(L.reveal("weights"), L.reveal("amp", left, "%"))

# %% [markdown]
# Both halves of the saying are worth keeping in their exact form. Autocast shrinks *activations*, not by half here: it also keeps a bfloat16 copy of each weight until backward is done, and the input stays float32. Weights, gradients and Adam's numbers keep their four bytes. So a program whose memory is mostly activations gains much, and its largest batch may nearly double; a program that is mostly weights gains next to nothing. Notebook [08](08_mixed_precision.ipynb) has the rest.
#
# ## The decision tree
#
# ### 09.2 Five programs that run out of memory
#
# All five are the same small transformer in other sizes. This is the loop; `Program` holds the sizes and which remedies are in place.

# %% tags=["setup"]
import inspect
from dataclasses import replace

from gpulab.lessons.labs import oom

print(inspect.getsource(oom.train))

# %% [markdown]
# The tree, to be walked from the top. Every question is answered by a counter, and every answer rules something out.
#
# 1. **Does the first step fail?** If not, what fits once should fit again. Look at memory in use where each step begins.
#    - It *rises* from step to step: something is kept. A list of losses (09.6), or validation without `inference_mode` (09.8).
#    - It is *flat*, and sizes vary: fragments, if much is reserved and not allocated (09.3); else one sample that is longer than the others (09.7).
# 2. **It does: are weights, gradients and optimizer state alone more than the card?** Then no batch is small enough. Fewer optimizer numbers; for inference, smaller weights; several GPUs; a smaller model.
# 3. **They are not: then it is the activations.** In this order, cheapest first: half precision (saves time too), fused attention (saves time too, where the formula is written out), the batch in parts whose gradients add up (a little slower), activations computed again in backward (forward twice: about a third more arithmetic).
# 4. **Does another process use the card?** The error names it.
# 5. **Check again**: the same losses, the new peak, and what it cost.
#
# The first of the five does not fail at once.

# %% tags=["predict"]
L.predict("later")

# %% tags=["measure"]
later = oom.CASES["later"]
try:
    with gpulab.virtual_gpu("l4", "later"):
        oom.train(later)
except torch.OutOfMemoryError as error:
    print(str(error).partition(" If reserved")[0])
gpulab.report(gpulab.runs["later"])

# %% tags=["measure"]
gpulab.charts.memory_over_time(gpulab.runs["later"])

# %% tags=["reveal"]
L.reveal("later")

# %% [markdown]
# The report has already walked the tree: it looked at every tensor that was alive and says who holds it. `history` holds a few losses, and through their graphs most of the card. How it knows, and what it could be confused with:

# %% tags=["measure"]
# %gpuwhy out_of_memory

# %% tags=["worked"]
# <fix>
# was: fixed = later
fixed = replace(later, keeps_graphs=False)  # in the loop: history.append(seen.detach())
# </fix>
ran_to_its_end = oom.fits(fixed, "later_fixed")

# %% tags=["same"]
L.same(oom.train(oom.small(later), "cpu"), oom.train(oom.small(fixed), "cpu"))

# %% tags=["claim"]
L.claim(
    "the program that ran out of memory after twenty steps trains all of its 32 once its list holds no graphs",
    ran_to_its_end and oom.facts(later, gpulab.runs["later"]).steps < 32,
    before=oom.facts(later, gpulab.runs["later"]).steps,
    after=32,
    unit="steps",
    source=gpulab.runs["later"],
)

# %% [markdown]
# The other four fail in their first step. Here is what is known of each: *states* are weights, gradients and optimizer state, worked out by hand as in 09.1, against what the card has for tensors.

# %% tags=["measure"]
for name in ("states", "batch", "long", "large"):
    facts = oom.fault(name)
    print(
        f"{name:7} states {facts.states_bytes / 2**30:4.1f} of {facts.room_bytes / 2**30:.1f} GiB; "
        f"batch {facts.batch:3}, half precision: {facts.half}, fused attention: {facts.fused}; asked for in: "
        f"{gpulab.runs[name].failure.phase or 'the first forward pass'}"
    )

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "b"
# </blank>
L.check("counter", answer)

# %% [markdown]
# Your turn: for each of the four, the *cheapest* remedy of the tree that makes it run. There are six, by name: `detach`, `half`, `fused`, `parts` (four of them), `recompute`, `state` (one number for each weight instead of two). Each of your choices is run on the card; and so is every cheaper one, to see that none of those would have done.

# %% tags=["exercise"]
# <blank> fill in all four: chosen = {"states": ..., "batch": ..., "long": ..., "large": ...}
# was: chosen = {}
chosen = {"states": "state", "batch": "half", "long": "fused", "large": "parts"}
# </blank>
cheapest = {name: oom.cheapest(oom.CASES[name]) for name in chosen}
right = [name for name, remedy in chosen.items() if remedy == cheapest[name]]
for name in chosen:
    print(f"{name}: {'runs, and nothing cheaper does' if name in right else 'not yet'}")

# %% tags=["score"]
L.score("cheapest", len(right) if chosen else None)

# %% [markdown]
# Do they still train the same? Three of them must, within the rounding of bfloat16; small enough for the CPU, they do. The fourth is another optimizer and therefore another training: there, only the loss of your own task tells. That is why it comes last.

# %% tags=["same"]
mended = {name: oom.mended(oom.CASES[name], [remedy]) for name, remedy in chosen.items() if name != "states"}
L.same(
    [oom.train(oom.small(oom.CASES[name]), "cpu") for name in mended],
    [oom.train(oom.small(program), "cpu") for program in mended.values()],
    equal=0.05,
)

# %% tags=["claim"]
L.claim(
    "each of the four that failed in their first step runs with one remedy, and with none that is cheaper",
    len(right) == 4,
    before=0,
    after=len(right),
    unit="programs that run",
    source=gpulab.runs["states"],
)

# %% [markdown]
# The tree as a function, `oom.walked`, takes the same facts, read from the recordings. These are its ways, with the remedies it would try, in order:

# %% tags=["measure"]
for name in oom.CASES:
    path, remedies = oom.walked(oom.facts(oom.CASES[name], gpulab.runs[name]))
    print(f"{name}: {'; '.join(path)} -> {', '.join(remedies)}")

# %% [markdown]
# Two remarks. gpulab's report orders by another price than this tree: it puts the batch in parts before half precision, because parts change no number; the tree puts half precision first, because it also saves time. And `parts` stops being exact where a layer looks at the whole batch, as batch normalisation does.
#
# ## Memory that is there and cannot be had
#
# Three experiments on what lies between a tensor and the driver. First all three predictions.

# %% tags=["predict"]
display(L.predict("pieces"), L.predict("pool"), L.predict("inplace"))


# %% [markdown]
# ### 09.3 Free memory in pieces
#
# Features are computed one after the other and kept, 72 MiB each; computing one needs 128 MiB for a moment. All 240 take 17 GiB, and the card has 22.

# %% tags=["given"]
def keep_features(count, room_first, device="cuda", mib=2**18):
    """`mib`: numbers in a MiB of float32; fewer make the same program small."""
    room = torch.empty(count, 72 * mib, device=device) if room_first else None
    kept = []
    for place in range(count):
        raw = torch.full((128 * mib,), float(place), device=device)
        scale = raw.mean()
        del raw
        features = room[place] if room_first else torch.empty(72 * mib, device=device)
        kept.append(features.fill_(scale))
    return kept


def on_the_card(name, room_first):
    """How many features the card could keep."""
    try:
        with gpulab.virtual_gpu("l4", name):
            return len(keep_features(240, room_first))
    except torch.OutOfMemoryError as error:
        print(str(error).partition(" If reserved")[0])
        return 0


# %% tags=["measure"]
in_pieces = on_the_card("in_pieces", room_first=False)
# <fix>
# was: room_first = False
room_first = True
# </fix>
in_a_row = on_the_card("in_a_row", room_first)
print(f"kept: {in_pieces} as they come, {in_a_row} with room made first")

# %% [markdown]
# Read the error again: some 9 GiB are reserved and unallocated. Each piece of features went into the hole that its 128 MiB had left, and what remains of that hole, 56 MiB, fits no request that follows. The remedy in your own code is to make room first, or to use few sizes: round lengths up, pad batches to a handful of shapes.

# %% tags=["same"]
L.same(keep_features(6, False, "cpu", 64), keep_features(6, room_first, "cpu", 64))

# %% tags=["claim"]
L.claim(
    "with room made first, the card keeps all 240 features that it could not keep in pieces",
    in_pieces == 0 and in_a_row == 240,
    before=in_pieces,
    after=in_a_row,
    unit="features kept",
    source=gpulab.runs["in_a_row"],
)

# %% [markdown]
# The remedy in a setting: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`. PyTorch then takes addresses for the whole card and maps memory to them in pages of 2 MiB where it is needed, so that free pages can be moved to where a request fits. gpulab's played cards have PyTorch's default settings; so here both allocators are simulated, on the requests that a card with more room recorded. They are two hundred lines together, in `gpulab.lessons.labs.fragments`.

# %% tags=["measure"]
from gpulab.lessons.labs import fragments

with gpulab.virtual_gpu("h100", "roomy"):
    keep_features(240, room_first=False)
requests = fragments.requests_of(gpulab.runs["roomy"])
card_bytes = oom.room_bytes("l4")
fixed_segments = fragments.play(requests, fragments.FixedSegments(card_bytes))
served = requests[: fixed_segments.done]  # up to the one that fixed segments cannot serve
# <fix>
# was: allocator = fragments.FixedSegments
allocator = fragments.GrowingSegment
# </fix>
growing_segment = fragments.play(served, allocator(card_bytes))
for name, told in (("fixed", fixed_segments), ("growing", growing_segment)):
    print(
        f"{name} after {told.done} requests: held {told.held_bytes / 2**30:.1f} GiB, given out "
        f"{told.given_bytes / 2**30:.1f} GiB, largest free piece {told.largest_free_bytes / 2**20:,.0f} MiB"
    )
to_the_end = fragments.play(requests, allocator(card_bytes))
print(f"growing, all of it: {to_the_end.done} of {len(requests)} requests served")

# %% tags=["claim"]
L.claim(
    "where fixed segments have no free piece of 128 MiB left, a segment that grows has 8 GiB in one, "
    "and serves the rest",
    fixed_segments.largest_free_bytes < 128 * 2**20
    and growing_segment.largest_free_bytes > 8 * 2**30
    and to_the_end.refused_bytes is None,
    before=fixed_segments.largest_free_bytes / 2**20,
    after=growing_segment.largest_free_bytes / 2**20,
    unit="MiB in the largest free piece",
    source=gpulab.lessons.SIMULATED,
)


# %% [markdown]
# ### 09.4 Asking for memory in every step
#
# "Build a memory pool" and "reuse tensors" are common advice. Here is a step that makes two tensors of 64 MiB, three times: with `empty_cache()` after each step, as people write it when memory is short; without; and with `out=`, into a buffer of its own. Two counters: how often PyTorch's allocator is asked, and how often it has to ask the driver, which waits for the GPU.

# %% tags=["measure"]
def products(forget=False, reuse=False, steps=12, warm=4):
    """Tensors asked for, and calls to the driver, in each settled step."""
    x, w = (torch.randn(4096, 4096, device="cuda") for _ in range(2))
    buffer = torch.empty(4096, 4096, device="cuda")
    for step in range(steps):
        if step == warm:
            before = torch.cuda.memory_stats()
        if reuse:
            torch.mm(x, w, out=buffer)
            torch.tanh(buffer, out=buffer)
        else:
            y = x @ w
            y = torch.tanh(y)
            del y
        if forget:
            torch.cuda.empty_cache()
        gpulab.step()
    after = torch.cuda.memory_stats()
    counters = ("allocation.all.allocated", "num_device_alloc")
    return tuple((after[each] - before[each]) / (steps - warm) for each in counters)


with L.gpu("forgets"):
    forgets = products(forget=True)
with L.gpu("keeps"):
    # <fix>
    # was: keeps = products(forget=True)
    keeps = products()
    # </fix>
with L.gpu("reuses"):
    # <fix>
    # was: reuses = products()
    reuses = products(reuse=True)
    # </fix>
for name, (tensors, calls) in {"empty_cache()": forgets, "as it is": keeps, "out=": reuses}.items():
    print(f"{name:14} {tensors:g} tensors and {calls:g} calls to the driver in a step")
found = {each.rule: each for each in gpulab.diagnose(gpulab.runs["forgets"]).findings}
if "allocator_thrash" in found:
    print("with empty_cache(), gpulab says:", found["allocator_thrash"].claim)

# %% tags=["claim"]
L.claim(
    "without empty_cache() in the loop, a settled step asks the driver for nothing",
    keeps[1] == 0 and forgets[1] >= 1,
    before=forgets[1],
    after=keeps[1],
    unit="calls to the driver in a step",
    source=gpulab.runs["keeps"],
)

# %% tags=["claim"]
L.claim(
    "out= asks for no tensor at all, and saves no call to the driver: there was none left to save",
    reuses == (0, 0) and keeps[0] >= 2 and keeps[1] <= forgets[1],
    before=keeps[0],
    after=reuses[0],
    unit="tensors asked for in a step",
    source=gpulab.runs["reuses"],
)

# %% [markdown]
# The second line is the honest result on "build a pool": PyTorch is one. Reuse by hand saves tensors, and with them some of the peak; it is no cure for calls to the driver. Those come from a cache that is thrown away, by you or because the card is full.
#
# ### 09.5 In place, and when autograd says no
#
# `relu(2 * x + 1)` makes a new tensor for each of its three operators. Here the bytes that operators ask for are counted, on the CPU, as on any device.

# %% tags=["measure"]
from gpulab.lessons.labs import anatomy

torch.manual_seed(0)
x = torch.randn(2**20)
with anatomy.allocations() as apart:
    one = torch.relu(2 * x + 1)
with anatomy.allocations() as written_over:
    # <fix>
    # was: other = torch.relu(2 * x + 1)
    other = (2 * x).add_(1).relu_()
    # </fix>
print(f"{apart.bytes / 2**20:g} MiB in {apart.count} tensors -> {written_over.bytes / 2**20:g} in {written_over.count}")

# %% tags=["same"]
L.same(one, other)

# %% tags=["claim"]
L.claim(
    "in place, 4 MiB are asked for instead of 12",
    (apart.bytes, written_over.bytes) == (12 * 2**20, 4 * 2**20),
    before=apart.bytes / 2**20,
    after=written_over.bytes / 2**20,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# In training there is a catch. `sigmoid` keeps its *output* for backward; whoever writes over it takes away what backward needs. PyTorch counts how often each tensor was written to, and stops.

# %% tags=["check"]
gate = torch.ones(4, requires_grad=True)
try:
    torch.sigmoid(gate).mul_(2).sum().backward()
except RuntimeError as error:
    print(str(error).partition(":")[0])

torch.sigmoid(gate).mul(2).sum().backward()  # a new tensor: what sigmoid kept stays as it was
print("with mul instead of mul_ it has a gradient:", gate.grad is not None)


# %% [markdown]
# So in-place operators are allowed where nobody kept what they overwrite. The best known is `nn.ReLU(inplace=True)`. How much does it save in training? Count what is kept for backward.

# %% tags=["measure"]
def kept_by(activation, layers=4, rows=4096, width=1024):
    """Bytes that a forward pass keeps for backward; on the meta device, which has no memory."""
    with torch.device("meta"):
        model = nn.Sequential(*[each for _ in range(layers) for each in (nn.Linear(width, width), activation())])
        x = torch.empty(rows, width)
        return anatomy.saved_bytes(lambda: model(x), model)


relu_bytes = kept_by(nn.ReLU)
# <fix>
# was: in_place_bytes = kept_by(nn.GELU)
in_place_bytes = kept_by(partial(nn.ReLU, inplace=True))
# </fix>
for name, kept in {"ReLU": relu_bytes, "in place": in_place_bytes, "GELU": kept_by(nn.GELU)}.items():
    print(f"{name:9} {kept / 2**20:g} MiB")

# %% tags=["claim"]
L.claim(
    "ReLU in place keeps exactly as much for backward as ReLU: nothing is saved there",
    in_place_bytes == relu_bytes,
    before=relu_bytes / 2**20,
    after=in_place_bytes / 2**20,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)

# %% tags=["reveal"]
display(L.reveal("pieces"), L.reveal("pool", keeps[1]), L.reveal("inplace"))

# %% [markdown]
# Why nothing? `Linear` does not keep its output, and `ReLU` keeps its own, which is the next layer's input anyway: one tensor for both. What in place saves is one tensor for the moment of the operator. `GELU` keeps its input, which nobody else does, and is the dearer one here.
#
# ## Memory that is kept for nothing, and memory that grows
#
# Three more predictions.

# %% tags=["predict"]
display(L.predict("lists"), L.predict("side"), L.predict("eval"))


# %% [markdown]
# ### 09.6 A list of losses
#
# The best known leak, "you append the loss and not its value", is only half of the story. Both lists below hold losses as they come.

# %% tags=["measure"]
def collecting(what, steps=24):
    """Train, and append something to a list in every step."""
    with torch.device("cuda"):
        model = nn.Sequential(*[each for _ in range(3) for each in (nn.Linear(1024, 1024), nn.GELU())])
        held_out = torch.randn(4096, 1024)
    optimizer = torch.optim.Adam(model.parameters())
    history = []
    for _ in range(steps):
        x = torch.randn(1024, 1024, device="cuda")
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        seen = loss if what == "training loss" else model(held_out).square().mean()
        history.append(seen.item() if what == "number" else seen)


def rise(name):
    """Bytes by which memory in use rises in each settled step: the least and the most."""
    rises = anatomy.rises(gpulab.runs[name].allocator_rows["allocated_bytes"].tolist())
    return min(rises), max(rises)


with L.gpu("training_losses"):
    collecting("training loss", steps=10)
with L.gpu("validation_losses"):
    collecting("validation loss")
with L.gpu("numbers"):
    # <fix>
    # was: collecting("validation loss", steps=10)
    collecting("number", steps=10)
    # </fix>
for name in ("training_losses", "validation_losses", "numbers"):
    print(f"{name:18} {rise(name)[0]:,} to {rise(name)[1]:,} bytes more in each step")
growth = [each for each in gpulab.diagnose(gpulab.runs["validation_losses"]).findings if each.rule == "memory_growth"]
print(*(each.claim for each in growth), *(each.fix for each in growth), sep="\n")

# %% tags=["claim"]
L.claim(
    "a list of validation losses grows by more than 64 MiB a step, a list of numbers by nothing",
    rise("validation_losses")[0] > 64 * 2**20 and rise("numbers")[1] == 0,
    before=rise("validation_losses")[1] / 2**20,
    after=rise("numbers")[1] / 2**20,
    unit="MiB a step",
    source=gpulab.runs["numbers"],
)


# %% [markdown]
# The training losses rise by 512 bytes a step, the least that is given out for one number: `backward()` has let go of everything else. `.item()` brings that to zero and makes the host wait for the GPU, once in each call; `.detach()` does not wait and keeps the 512 bytes. Collect detached losses, and read them every hundred steps (notebook [07](07_host_to_device.ipynb) shows why).
#
# ### 09.7 Larger images, longer sequences
#
# How does memory grow with the side of an image, and with the length of a sequence? The *exponent* says it: 1 if twice the size takes twice the memory, 2 if it takes four times. Convolutions are counted on the meta device. Attention runs on a GPU, as there PyTorch chooses the fused operator; the peak of forward and backward is read.

# %% tags=["measure"]
def kept_of_images(side):
    """Bytes kept for backward by two convolutions of two images."""
    with torch.device("meta"):
        first, second = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
        model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU())
        images = torch.empty(2, 3, side, side)
        return anatomy.saved_bytes(lambda: model(images), model)


by_side = {side: kept_of_images(side) for side in (128, 256, 512, 1024)}


def written(query, key, value):
    return torch.softmax(query @ key.transpose(-2, -1) / 8, dim=-1) @ value


def peaks(attend):
    """The peak of forward and backward above what the inputs take, by length."""
    found = {}
    for length in (512, 1024, 2048, 4096):
        inputs = [torch.randn(1, 16, length, 64, device="cuda", requires_grad=True) for _ in range(3)]
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        attend(*inputs).sum().backward()
        found[length] = torch.cuda.max_memory_allocated() - held
    return found


with L.gpu("attention_written"):
    by_length = peaks(written)
with L.gpu("attention_fused"):
    # <fix>
    # was: fused_by_length = peaks(written)
    fused_by_length = peaks(nn.functional.scaled_dot_product_attention)
    # </fix>
exponents = [anatomy.exponent(each) for each in (by_side, by_length, fused_by_length)]
grown = {"side": by_side, "length, written": by_length, "length, fused": fused_by_length}
for (name, sizes), exponent in zip(grown.items(), exponents, strict=True):
    print(f"{name:16}", {size: f"{held / 2**20:,.0f} MiB" for size, held in sizes.items()}, f"exponent {exponent:.2f}")

# %% tags=["claim"]
L.claim(
    "memory goes with the square of an image's side and of a sequence's length (exponent 1.9 to 2.1), "
    "and with fused attention with the length itself (at most 1.1)",
    all(1.9 <= each <= 2.1 for each in exponents[:2]) and exponents[2] <= 1.1,
    before=round(exponents[1], 2),
    after=round(exponents[2], 2),
    unit="as exponent of the length",
    source=gpulab.runs["attention_fused"],
)

# %% [markdown]
# One long sample in a thousand therefore decides whether a training run survives: a text of twice the length needs four times the memory for its scores. Sort by length, cap it, or use the fused operator, which never writes the scores down.
#
# ### 09.8 Validation that keeps what nobody needs
#
# The same forward pass, four ways.

# %% tags=["measure"]
import contextlib


def kept_in(context, evaluating=True):
    """Bytes that a forward pass keeps for backward, within a context."""
    with torch.device("meta"):
        model, x = make_model().train(not evaluating), torch.empty(batch, WIDTH)
        with context:
            return anatomy.saved_bytes(lambda: model(x), model)


training_bytes = kept_in(contextlib.nullcontext(), evaluating=False)
eval_bytes = kept_in(contextlib.nullcontext())
no_grad_bytes = kept_in(torch.no_grad())
# <fix>
# was: quiet = contextlib.nullcontext()
quiet = torch.inference_mode()
# </fix>
inference_bytes = kept_in(quiet)
print(f"training {training_bytes:,}; eval() {eval_bytes:,}; no_grad() {no_grad_bytes:,}; quiet {inference_bytes:,}")

# %% tags=["claim"]
L.claim(
    "eval() alone keeps every byte that training keeps; inference_mode() keeps none",
    eval_bytes == training_bytes and inference_bytes == no_grad_bytes == 0,
    before=eval_bytes / 2**20,
    after=inference_bytes / 2**20,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)

# %% [markdown]
# A related piece of advice is to "build the graph dynamically, so that memory is taken only when it is needed". PyTorch always does; there is nothing to switch on. What is kept follows from the operators that ran:

# %% tags=["measure"]
# <fix>
# was: layers_run = LAYERS
layers_run = 2
# </fix>
with torch.device("meta"):
    model, x = make_model(), torch.empty(batch, WIDTH)
    part_bytes = anatomy.saved_bytes(lambda: model[: 2 * layers_run](x), model)
print(f"{layers_run} of {LAYERS} layers run: {part_bytes / 2**20:g} MiB kept; all: {training_bytes / 2**20:g} MiB")

# %% tags=["claim"]
L.claim(
    "two layers of eight that run keep a quarter, and those left out keep nothing, without any setting",
    part_bytes == 2 * 2 * layer,
    before=training_bytes / 2**20,
    after=part_bytes / 2**20,
    unit="MiB",
    source=gpulab.lessons.COUNTED,
)

# %% tags=["reveal"]
display(
    L.reveal("lists"),
    L.reveal("side", by_side[256] / by_side[128], "times"),
    L.reveal("eval", eval_bytes / training_bytes, "%"),
)

# %% [markdown]
# ## Reading the instruments

# %% tags=["predict"]
display(L.predict("three"), L.predict("stage"))


# %% [markdown]
# ### 09.9 Three numbers for one memory
#
# `nvidia-smi` (and `gpustat`, which asks the same driver) shows what is *used*, by all processes. PyTorch says what it has *reserved* of that, and what it has *allocated* to tensors. Here all three, before and after the cache is given back. On a played card *used* includes a context of a stated size; on yours it is what the driver says.

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
for name, one, other in zip(("used", "reserved", "allocated"), before, after, strict=True):
    print(f"{name:10} {one / 2**20:7,.0f} MiB -> {other / 2**20:7,.0f} MiB")
print(f"used less reserved: {(before[0] - before[1]) / 2**20:,.0f} MiB, the context and workspaces")
print(f"reserved less allocated: {(before[1] - before[2]) / 2**20:,.0f} MiB, the cache")

# %% tags=["claim"]
returned, let_go = before[0] - after[0], before[1] - after[1]
L.claim(
    "giving the cache back lowers what nvidia-smi shows by what PyTorch lets go, more than 512 MiB, "
    "and takes no tensor a byte",
    let_go > 512 * 2**20 and abs(returned / let_go - 1) <= 0.01 and before[2] == after[2],
    before=before[0] / 2**20,
    after=after[0] / 2**20,
    unit="MiB used",
    source=gpulab.runs["three"],
)

# %% [markdown]
# So the differences are assigned: used less reserved is the context, workspaces and other processes; reserved less allocated is the cache, which the next step uses again, and fragments, which it cannot. A full bar in `nvidia-smi` is neither a leak nor a reason to worry. To look into *allocated*, gpulab draws what it was for when most was given out (on a GPU of your own, record with `--level deep` for that):

# %% tags=["measure"]
gpulab.charts.memory_kinds(gpulab.runs["later_fixed"])

# %% [markdown]
# ### 09.10 The peak of each part of a step
#
# The same model with a batch of 256 instead of 4096, and Adam in two forms: `foreach`, usual on a GPU, which works on all weights at once and needs temporary copies of them, and `fused`, one kernel that needs none. The chart shows the first.

# %% tags=["measure"]
by_form = {}
# <fix>
# was: forms = {"fused": {"foreach": True}, "foreach": {"foreach": True}}
forms = {"fused": {"fused": True}, "foreach": {"foreach": True}}
# </fix>
for name, form in forms.items():
    told = gpulab.virtual.fits(partial(training, **form), "l4", 256).fit.measured
    by_form[name] = told.peak
    phases = ", ".join(f"{use.phase.value} {use.bytes / 2**20:,.0f}" for use in told.phases)
    print(f"{name:8} {phases} MiB; the peak is in {told.peak.phase.value}")
gpulab.charts.memory_phases(gpulab.runs["virtual L4"])

# %% tags=["claim"]
L.claim(
    "with a small batch the peak is in the optimizer's update; fused=True takes it out of there "
    "and lowers it by a tenth",
    by_form["foreach"].phase.value == "optimizer"
    and by_form["fused"].phase.value != "optimizer"
    and by_form["fused"].bytes <= 0.9 * by_form["foreach"].bytes,
    before=by_form["foreach"].bytes / 2**20,
    after=by_form["fused"].bytes / 2**20,
    unit="MiB",
    source=gpulab.runs["virtual L4"],
)

# %% tags=["reveal"]
display(L.reveal("three"), L.reveal("stage"))

# %% [markdown]
# With a batch of 4096 the peak was in backward (09.1). Which part holds the peak decides which remedy can work: halving the batch does nothing for a peak in the update.
#
# ## Make: one program, two reasons
#
# This one fails for two reasons at once. Make it run on the same card with as few remedies as you can; par is two. `oom.facts`, the tree, and the error after each try are yours to use.

# %% tags=["exercise"]
# <blank> a list of remedies, as in plan = ["half", "fused"]
# was: plan = []
plan = ["state", "parts"]
# </blank>
runs_now = bool(plan) and oom.fits(oom.mended(oom.BOTH, plan), "make")
print("it runs" if runs_now else "it does not run yet")

# %% tags=["score"]
L.score("fewest", len(plan) if runs_now else None)

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

# %% tags=["card"]
L.card()
