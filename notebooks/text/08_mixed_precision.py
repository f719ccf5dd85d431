# %% [markdown]
# # 08 Mixed precision: what do sixteen bits give, and what do they break?
#
# A number in float32 takes four bytes. In bfloat16 or float16 it takes two, and recent GPUs have units, the tensor cores, that multiply matrices of such numbers many times as fast. Mixed precision means: sixteen bits where they do no harm, thirty-two where they would.
#
# | type | bits: sign, exponent, fraction | largest | least above zero | next below 1 |
# |---|---|---|---|---|
# | float32 | 1, 8, 23 | 3e38 | 1e-45 | 1 - 0.00000006 |
# | TF32, in products only | 1, 8, 10 | 3e38 | about 1e-38 | 1 - 0.0005 |
# | bfloat16 | 1, 8, 7 | 3e38 | 9e-41 | 1 - 0.004 |
# | float16 | 1, 5, 10 | 65,504 | 6e-8 | 1 - 0.0005 |
#
# Two facts of this table are enough for now. bfloat16 reaches as far as float32, and is coarse. float16 is finer, and its range is short: nearly all that breaks in the second half of this notebook breaks at one of its ends.
#
# Do [01 What is utilisation](01_what_is_utilisation.ipynb) first if "GPU busy" means little to you yet. You need 50 minutes and no GPU. Times, kernels and energy are then those of a virtual H100, computed from published peaks and measured shares of them; bytes, gradients, scales and overflows are real, on your CPU. Every number says which it is. (The numbers of the experiments are those of the course's plan; they are not done in that order.)

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("08_mixed_precision")
L

# %% tags=["setup"]
import pandas as pd
import torch
from IPython.display import display
from torch import nn
from torch.nn import functional

from gpulab.lessons import COUNTED
from gpulab.lessons.labs.kernels import half_precision, mixed_precision, precision_tables
from gpulab.lessons.labs.steps import throughput


def block(width):
    """A product, then three layers that mostly move data."""
    return nn.Sequential(nn.Linear(width, 4 * width), nn.BatchNorm1d(4 * width), nn.ReLU(), nn.MaxPool1d(4))


def network(width=1024, blocks=4, classes=64):
    """Blocks, and a layer that decides."""
    return nn.Sequential(*[block(width) for _ in range(blocks)], nn.Linear(width, classes))


def autocast(dtype, device="cuda"):
    """torch.autocast in this type; without one, nothing changes."""
    return torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None)


# %% [markdown]
# ## The symptom
#
# A classifier of sensor readings trains on an H100 that costs a few dollars an hour. nvidia-smi shows 100 %. "Then it is as fast as it gets," says a colleague. Predict first, then run the program and read the report: the first sentence, the fix below it, and the table "Where a step goes".

# %% tags=["predict"]
L.predict("full")

# %% [markdown]
# Press a choice, or write `L.answer("full", "b")` in a cell of your own. Everything runs without an answer, too.

# %% tags=["measure"]
# %%gpuprofile --virtual auto fp32
model = network().cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
inputs = torch.randn(65536, 1024, device="cuda")
labels = torch.randint(64, (65536,), device="cuda")
for _ in range(12):
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

# %% tags=["reveal"]
operations = 6 * len(inputs) * sum(each.numel() for each in model.parameters())  # 2 forward, 4 backward, each weight
L.reveal("full", mixed_precision.half_peak_frac(gpulab.runs["fp32"], operations), "%")

# %% [markdown]
# The report blames float32. Before you believe it, ask what would look different if it were wrong. Write the letter of your answer into the cell, also in the questions of this kind further down.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "a"
# </blank>
L.check("cause", answer)

# %% [markdown]
# ## What it gives: time
#
# ### 08.1 From float32 to TF32, bfloat16 and float16
#
# There are three ways down from float32:
#
# - **TF32** leaves every tensor as it is, and rounds the factors of products to 10 bits inside the tensor cores: one line for the whole program.
# - **autocast in bfloat16** casts the inputs of products to 16 bits. Their results are 16 bits wide too, and travel in half the bytes.
# - **autocast in float16** does the same, and needs a gradient scaler, of which more in 08.3.
#
# In all of them the tensor cores add up in float32. Tensor cores came with the V100 (compute capability 7.0), TF32 and bfloat16 with the A100 (8.0).

# %% tags=["predict"]
L.predict("ladder")


# %% [markdown]
# Now all three are run. New in the loop are the first two lines of `train`, `with autocast(...)`, and the scaler, which does nothing unless the type is float16.

# %% tags=["measure"]
def train(precision_of_products="highest", dtype=None, steps=12):
    """The program above, with a choice of precision."""
    torch.set_float32_matmul_precision(precision_of_products)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = torch.randn(65536, 1024, device="cuda")
    labels = torch.randint(64, (65536,), device="cuda")
    for _ in range(steps):
        with autocast(dtype):
            loss = functional.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    torch.set_float32_matmul_precision("highest")


# <fix>
# was: ways = {"tf32": {}, "bf16": {}, "fp16": {}}
ways = {"tf32": {"precision_of_products": "high"}, "bf16": {"dtype": torch.bfloat16}, "fp16": {"dtype": torch.float16}}
# </fix>
for name, way in ways.items():
    with L.gpu(name):
        train(**way)

runs = gpulab.runs
ms = {name: throughput.step_ms(runs[name]) for name in ("fp32", *ways)}
for name, each in ms.items():
    print(f"{name}: {each:5.1f} ms a step, {ms['fp32'] / each:.1f} times as fast as fp32   [{runs[name].source}]")


# %% [markdown]
# Speed is worth nothing if the result is another. The virtual GPU cannot say: its tensors have sizes and no numbers. So train a small version for real, in float32 and in bfloat16, and compare the losses, which may differ by what seven bits of fraction explain: 5 %.

# %% tags=["same"]
def losses(dtype, steps=10):
    """What a small network's loss does, from the same seed, on this machine's own device."""
    torch.manual_seed(0)
    model = network(width=64, blocks=2, classes=4).to(L.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.randn(128, 64, device=L.device)
    labels = (inputs[:, :4]).argmax(dim=1)
    seen = []
    for _ in range(steps):
        with autocast(dtype, L.device):
            loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen


L.same(losses(None), losses(torch.bfloat16), equal=0.05)

# %% tags=["claim"]
display(L.reveal("ladder", ms["fp32"] / ms["bf16"], "times"))
L.claim(
    "each way down is faster: TF32 at least 1.5 times float32, bfloat16 at least 1.3 times TF32, float16 within 15 %",
    ms["fp32"] > 1.5 * ms["tf32"] and ms["tf32"] > 1.3 * ms["bf16"] and abs(ms["fp16"] / ms["bf16"] - 1) < 0.15,
    before=ms["fp32"],
    after=ms["bf16"],
    unit="ms a step",
    source=runs["bf16"],
)

# %% [markdown]
# Could you have known before you changed a line? gpulab forecasts such a step from the float32 run alone (`%gpuwhatif fp32 amp=bf16` shows how), and `%gpucompare` puts the forecast, *Predicted*, beside the outcome. On a virtual GPU both are models, of different kinds: the forecast knows the float32 run and a rule for the rest, the virtual GPU prices every operator by itself. That they agree is a check of one against the other, and no proof of either.

# %% tags=["measure"]
# %gpucompare fp32 bf16 amp=bf16

# %% [markdown]
# ### 08.7 Is sixteen bits eight times as fast?
#
# An article says that NVIDIA's GPUs compute eight times as fast in 16 bits as in 32, and that batch normalisation, activations and pooling gain as well. By how much, each of them? Take the step apart.

# %% tags=["predict"]
L.predict("eight")

# %% [markdown]
# The cell shows published peaks, then one call of each layer, and then a *roofline*. There each mark is a matrix product of the run: to the right, how many operations it does for each byte that it moves; upwards, the arithmetic that it reaches. The slanted line is what the memory allows, the flat one what the tensor cores can do.

# %% tags=["measure"]
wide = mixed_precision.layers(runs["fp32"])
# <fix>
# was: narrow = precision.layers(runs["fp32"])
narrow = mixed_precision.layers(runs["bf16"])
# </fix>
display(precision_tables.peaks(), precision_tables.beside(wide, narrow))

products = min(wide[name].ms / narrow[name].ms for name in mixed_precision.PRODUCTS)
passes = max(wide[name].ms / narrow[name].ms for name in mixed_precision.PASSES)
halved = all(1.9 < wide[name].bytes / narrow[name].bytes < 2.1 for name in (*mixed_precision.PRODUCTS, *mixed_precision.PASSES))
gpulab.charts.roofline(runs["bf16"])

# %% tags=["claim"]
display(L.reveal("eight", passes, "times"))
L.claim(
    "bytes halve in products and in passes over memory, but products run at least 5 times as fast in bfloat16 and "
    "batch normalisation, ReLU and pooling at most 2.4 times",
    halved and products >= 5 and passes <= 2.4,
    before=passes,
    after=products,
    unit="times",
    source=runs["bf16"],
)

# %% [markdown]
# The bytes of all but the optimizer halve. What a layer makes of that depends on what it waits for: a product waits for arithmetic, the others wait for memory. Pooling gains a little less than two times, as it also writes where each largest input stood, in 64-bit whole numbers, which stay as they are (and which the column of bytes leaves out). The optimizer gains nothing: weights, gradients and its own states stay in float32.
#
# And "eight times" is right for the products of a V100 or a T4, against float32 without TF32. On an H100 the peaks are 14.8 apart, on an RTX 3090 2.0, and wherever TF32 was on already, 2.0.
#
# In the roofline the large products lie to the right of where the lines meet, some 300 operations on each byte: arithmetic is their limit. The small mark on the left is the last layer, 64 wide: a product, and yet memory is its limit. ReLU would lie far further left. Tensor cores lift the flat line. No narrower number lifts the slanted one; it only gives the memory fewer bytes to carry.

# %% [markdown]
# ### 08.10 Joules of a step
#
# Another article expects lower power. What is paid for is energy: power times time. At work, a board draws more than its idle power, and no more than its limit. `compare_gpus` takes half to all of the way from the one to the other, times the length of the step. So its figure rests on published limits and on time, not on a measurement. On a real GPU, `%gpucompare` shows the driver's own counter for runs of half a second and more.

# %% tags=["predict"]
L.predict("joules")


# %% tags=["measure"]
def training(dtype, make=network, width=1024):
    """What gpulab.virtual asks for: a function that builds a model, and gives one that trains on so many samples."""

    def build():
        with torch.device("cuda"):
            model = make(width)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(batch):
            inputs = torch.randn(batch, width, device="cuda")
            with autocast(dtype):
                loss = model(inputs).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def joules(dtype):
    """The least and the most that a step of 65,536 samples may take."""
    seen = gpulab.virtual.compare_gpus(training(dtype), ["h100"], batch=65536)
    return seen.compared.candidates[0].measured.joules_range


wide_j = joules(None)
# <fix>
# was: narrow_j = joules(None)
narrow_j = joules(torch.bfloat16)
# </fix>
print("J a step, at the least and at the most  [virtual H100 SXM, estimated from time and power limits]")
for name, (least, most) in {"float32": wide_j, "bfloat16": narrow_j}.items():
    print(f"{name:8} {least:6.1f} {most:6.1f}")

# %% tags=["claim"]
display(L.reveal("joules", sum(narrow_j) / sum(wide_j), "%"))
L.claim(
    "at the most that is estimated for it, a step in bfloat16 takes less than 0.7 times the least in float32",
    narrow_j[1] < 0.7 * wide_j[0],
    before=wide_j[0],
    after=narrow_j[1],
    unit="J a step",
    source="virtual H100 SXM, estimated",
)

# %% [markdown]
# ### 08.9 A model that is too small
#
# Now a very small network. The operators of one step are counted on your CPU, the kernels of the same step on the GPU.

# %% tags=["predict"]
L.predict("tiny")


# %% tags=["measure"]
def tiny_step(dtype, device):
    """One training step of six small layers, ready to be called."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3)])
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(4, 16, device=device)

    def step():
        with autocast(dtype, device):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# <fix>
# was: small = None
small = torch.bfloat16
# </fix>
kernels, calls = {}, {}
for name, dtype in {"tiny_fp32": None, "tiny_bf16": small}.items():
    calls[name] = mixed_precision.dispatched(tiny_step(dtype, "cpu"))
    with L.gpu(name):
        step = tiny_step(dtype, "cuda")
        for _ in range(12):
            step()
    kernels[name] = throughput.kernels_per_step(runs[name])
    casts = calls[name].get("aten._to_copy", 0)
    print(f"{name}: {sum(calls[name].values())} operators, {casts} of them casts   [{COUNTED}]")
    took = f"{kernels[name]:.0f} kernels, {throughput.step_ms(runs[name]):.2f} ms"
    print(f"{' ' * len(name)}  {took} a step   [{runs[name].source}]")
operators = [sum(each.values()) for each in calls.values()]

# %% tags=["claim"]
display(L.reveal("tiny", operators[1] / operators[0], "times as many"))
L.claim(
    "for six tiny layers autocast adds at least 15 % operators to a step, each of them a cast, and 20 % kernels",
    operators[1] > 1.15 * operators[0]
    and operators[1] - operators[0] == calls["tiny_bf16"]["aten._to_copy"]
    and kernels["tiny_bf16"] > 1.2 * kernels["tiny_fp32"],
    before=operators[0],
    after=operators[1],
    unit="operators",
    source=COUNTED,
)

# %% [markdown]
# A negative result worth keeping: where the launching of kernels is the limit, autocast makes the step longer. Make the work larger or launch it more cheaply first, as [12 Launches, fusion and graphs](12_launch_fusion_graphs.ipynb) does.
#
# ## What it gives: memory
#
# ### 08.2 What is kept for backward
#
# A layer keeps its inputs until the backward pass has used them. For most networks these activations are the largest part of the memory. Here they are counted for real: PyTorch tells of every tensor that it keeps, and each is counted once, by its bytes.

# %% tags=["predict"]
L.predict("half")

# %% tags=["measure"]
torch.manual_seed(0)
layers = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(16)])
samples = torch.randn(512, 256)
# <fix>
# was: half = None
half = torch.bfloat16
# </fix>
MIB = 2**20
shares = {}
for name, model in {"Linear and GELU": layers, "with BatchNorm and MaxPool": network(256, blocks=4)}.items():
    before, after = mixed_precision.kept(model, samples), mixed_precision.kept(model, samples, half)
    shares[name] = after.activation_bytes / before.activation_bytes
    told = f"{before.activation_bytes / MIB:.1f} MiB -> {after.activation_bytes / MIB:.1f} MiB ({shares[name]:.1%})"
    print(f"{name}: activations {told}, and {after.weight_bytes / MIB:.1f} MiB of cast weights")

# %% tags=["claim"]
display(L.reveal("half", shares["Linear and GELU"], "%"))
L.claim(
    "bfloat16 keeps exactly half the bytes of activations for Linear and GELU, and more than half with pooling",
    shares["Linear and GELU"] == 0.5 and 0.5 < shares["with BatchNorm and MaxPool"] < 1,
    before=shares["Linear and GELU"],
    after=shares["with BatchNorm and MaxPool"],
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# Here they are again, the 64-bit places that pooling remembers: autocast changes floating-point types only. And every weight that was cast is kept in its narrow form until the backward pass is over: a cost that float32 does not have.
#
# ### 08.8 Does the batch double?
#
# "It halves memory", "the batch may be up to twice as large": articles say both. `max_batch` plays the training step at growing sizes, with PyTorch's allocator simulated, until one does not fit: here on an L4, a GPU with 24 GB.

# %% tags=["predict"]
L.predict("batch")

# %% tags=["measure"]
# <fix>
# was: narrow_type = None
narrow_type = torch.bfloat16
# </fix>
found = {
    "float32": gpulab.virtual.max_batch(training(None), "l4", start=1024),
    "autocast": gpulab.virtual.max_batch(training(narrow_type), "l4", start=1024),
}
batches = {}
print("[virtual L4, estimated]")
for name, each in found.items():
    batches[name] = each.found.batch
    sizes = (
        f"{each.found.fixed_bytes / MIB:.0f} MiB whatever the batch, {each.found.sample_bytes / 1024:.0f} KiB a sample"
    )
    print(f"{name:8} at most {batches[name]:,} samples: {sizes}")


def heavy(width):
    """Much weight, and next to no samples."""
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(16)])


peaks = {}
for name, dtype in {"float32": None, "autocast": narrow_type}.items():
    peak = gpulab.virtual.fits(training(dtype, heavy, 4096), "l4", batch=64).fit.measured.peak
    peaks[name] = peak.bytes
    print(f"{name:8} at the peak {peak.bytes / MIB:,.0f} MiB, in 16 layers 4096 wide with 64 samples")

# %% tags=["claim"]
display(L.reveal("batch", batches["autocast"] / batches["float32"], "times"))
L.claim(
    "under autocast the batch grows by at least a fifth and does not double; where weights fill the memory, the peak "
    "does not fall at all",
    1.2 <= batches["autocast"] / batches["float32"] < 2 and peaks["autocast"] >= peaks["float32"],
    before=batches["float32"],
    after=batches["autocast"],
    unit="samples",
    source="virtual L4, estimated",
)

# %% [markdown]
# So "up to twice" is right as a bound, and "half the memory" is right of activations alone. Where a model of billions of weights learns from few samples, autocast is no remedy for running out of memory: narrow copies of the weights come on top of wide ones.
#
# ## What it breaks: range
#
# "Without compromising accuracy", says one of the articles of float16. The next three experiments are about what has to be done for that to be true.
#
# ### 08.3 Gradients that are too small
#
# A model looks for defects in images: one pixel in 200 is one. It begins by expecting that share everywhere, as such models are begun, and its loss is the mean over all pixels. With this loss the gradient at a good pixel is what the model expects there, 0.005, over the number of pixels. Work it out before you answer.

# %% tags=["predict"]
L.predict("zeros")

# %% tags=["measure"]
PIXELS, RATE = 2**18, 0.005
features, defect = half_precision.defects(PIXELS, RATE)


def gradients(dtype, scale=1.0):
    """The share of gradients of the outputs that are zero, and the last bias' gradient with the scale taken out."""
    model = half_precision.detector(RATE)
    with autocast(dtype, "cpu"):
        outputs = model(features).squeeze(1)
        outputs.retain_grad()
        loss = functional.binary_cross_entropy_with_logits(outputs.float(), defect)
    (scale * loss).backward()
    return (outputs.grad == 0).float().mean().item(), model[2].bias.grad.item() / scale


# <fix>
# was: scale = 1.0
scale = 65536.0
# </fix>
tried = {
    "float32": gradients(None),
    "float16": gradients(torch.float16),
    "float16, loss scaled": gradients(torch.float16, scale),
    "bfloat16": gradients(torch.bfloat16),
}
print(f"gradients of the outputs that are zero, and the gradient of the last bias  [{COUNTED}]")
for name, (zero, bias) in tried.items():
    print(f"{name:20} zero {zero:6.1%}   the bias is told {bias:+.5f}")

# %% [markdown]
# Look at the bias. In float32 it hears that its expectation is about right. In float16 it hears of the defects alone, and is told to expect far more of them. No error is raised, the loss of this step is right to three digits, and the model goes wrong.
#
# The remedy is one factor. Gradients are proportional to the loss, so a loss 65,536 times as large moves them all to where float16 has numbers; before the optimizer's step they are divided by it again, in float32. bfloat16 reaches as low as float32 and needs none of this.

# %% tags=["claim"]
display(L.reveal("zeros", tried["float16"][0], "%"))
L.claim(
    "float16 turns at least 95 % of these gradients into zero; scaled by 65,536 not one, and in bfloat16 not one",
    tried["float16"][0] >= 0.95 and tried["float16, loss scaled"][0] == 0 and tried["bfloat16"][0] == 0,
    before=tried["float16"][0],
    after=tried["float16, loss scaled"][0],
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# Which factor? Too small, and gradients vanish; too large, and they overflow. `GradScaler` looks for it: if a gradient is inf or nan, it skips the step and halves the scale; after a number of clean steps it doubles it. It works on a CPU as well, so watch it: it begins too high on purpose here, and doubles after 4 steps instead of the usual 2,000.

# %% tags=["measure"]
# <fix>
# was: scaler = torch.amp.GradScaler("cpu", enabled=False)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30, growth_interval=4)
# </fix>
model = half_precision.detector(RATE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = []
for _ in range(20):
    with autocast(torch.float16, "cpu"):
        outputs = model(features[:16384]).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(outputs.float(), defect[:16384])
    scaler.scale(loss).backward()
    before, old = scaler.get_scale(), [each.detach().clone() for each in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    moved = any(not torch.equal(*pair) for pair in zip(old, model.parameters(), strict=True))
    history.append((before, moved, scaler.get_scale()))

for number, (before, moved, after) in enumerate(history):
    change = "halved" if after < before else "doubled" if after > before else ""
    print(f"step {number:2d}: scale {before:13,.0f}, {'weights moved' if moved else 'step skipped'}  {change}")

# %% tags=["claim"]
skipped = [each for each in history if not each[1]]
L.claim(
    "the scale halves in every step that overflowed, and that step changes no weight; after 4 clean steps it doubles",
    len(skipped) >= 2
    and all(after == before / 2 for before, _, after in skipped)
    and all(after in (before, 2 * before) for before, moved, after in history if moved)
    and any(after == 2 * before for before, _, after in history),
    before=history[0][0],
    after=history[-1][2],
    source=COUNTED,
)

# %% [markdown]
# A few skipped steps at the beginning and one now and then are how it is meant to work. Steps skipped one after another are a fault; the last question of this notebook is about one.
#
# ### 08.4 Steps that are too small
#
# Gradients may be well and still do nothing. A weight of 1.0 is to be made smaller by 0.0001, a thousand times, and the weight is float16.

# %% tags=["predict"]
L.predict("master")

# %% [markdown]
# Fill in the line. The steps are to be taken on a copy that can hold them, and the model sees a float16 copy of that.

# %% tags=["exercise"]
direct = torch.ones(1000, dtype=torch.float16)
for _ in range(1000):
    direct -= 0.0001

weights = torch.ones(1000, dtype=torch.float16)
# <blank> make a copy of the weights in float32; the steps below are taken on it
# was: master = weights
master = weights.float()
# </blank>
for _ in range(1000):
    master -= 0.0001
    weights.copy_(master)
print(f"float16, updated directly: {direct[0]:.4f}")
print(f"float16, from the master copy: {weights[0]:.4f}; the master copy is {master.dtype}")

# %% tags=["claim"]
display(L.reveal("master", direct[0].item()))
L.claim(
    "a thousand steps of 0.0001 below 1.0 are all lost in float16, and all arrive by way of a float32 copy",
    bool((direct == 1).all()) and bool(((weights - 0.9).abs() < 0.001).all()),
    before=direct[0].item(),
    after=weights[0].item(),
    source=COUNTED,
)

# %% [markdown]
# autocast does this for you, in another way: parameters stay float32, are the master copy themselves, and are cast each time they are used. `model.half()` has no such copy. Neither has `model.bfloat16()`, which loses steps eight times as large: the numbers of bfloat16 below 1.0 lie 0.004 apart.
#
# ### 08.5 Operations that need the range
#
# Three formulas from everyday code, on numbers that float16 holds with ease: a softmax, a sum, a root mean square.

# %% tags=["predict"]
L.predict("soft")

# %% tags=["measure"]
scores = torch.tensor([3.0, 12.0], dtype=torch.float16)
ones = torch.ones(70_000, dtype=torch.float16)
readings = torch.full((1000,), 300.0, dtype=torch.float16)


def computed(dtype):
    """All three, as written, in this type."""
    powers = scores.to(dtype).exp()
    return {
        "softmax of 3 and 12": powers / powers.sum(),
        "sum of 70,000 ones": ones.to(dtype).sum(),
        "root mean square of 300s": readings.to(dtype).square().mean().sqrt(),
    }


# <fix>
# was: careful = computed(torch.float16)
careful = computed(torch.float32)
# </fix>
in_half = computed(torch.float16)
results = {"float16": in_half, "float32": careful}
print(f"torch.softmax, in float16: {half_precision.shown(scores.softmax(dim=0))}; it subtracts the largest before exp")
pd.DataFrame({name: {each: half_precision.shown(value) for each, value in told.items()} for name, told in results.items()})

# %% tags=["claim"]
display(L.reveal("soft"))
broken = [name for name, value in in_half.items() if not bool(torch.isfinite(value).all())]
right = {"softmax of 3 and 12": 0.99988, "sum of 70,000 ones": 70_000.0, "root mean square of 300s": 300.0}
L.claim(
    "all in float16, each of three formulas gives inf or nan; in float32, with the same inputs, all three are right",
    len(broken) == 3 and all(abs(careful[name].max().item() / value - 1) < 1e-4 for name, value in right.items()),
    before=len(broken),
    after=sum(not bool(torch.isfinite(value).all()) for value in careful.values()),
    unit="of 3 broken",
    source=COUNTED,
)

# %% [markdown]
# autocast keeps lists of operators: products go to 16 bits, what needs the range goes to float32, and the rest take what they are given. Which list applies depends on the device. Ask both, with float16 input: your CPU for real, and the GPU. (A virtual GPU follows the list of PyTorch's reference, so there this shows the list and not an experiment.) Before you run it, say of each formula of 08.5 on which side it will fall.

# %% tags=["measure"]
with L.gpu("lists"):
    on_gpu = half_precision.landings("cuda", torch.float16)
on_cpu = half_precision.landings("cpu", torch.float16)
# <fix>
# was: on_gpu = on_cpu
on_gpu = dict(on_gpu)
# </fix>
for name in on_gpu:
    print(f"{name:12s} GPU: {on_gpu[name]:8s} CPU: {on_cpu[name]}")

# %% tags=["claim"]
careful_on_gpu = [name for name, kind in on_gpu.items() if kind == "float32"]
careful_on_cpu = [name for name, kind in on_cpu.items() if kind == "float32"]
L.claim(
    "on a GPU autocast leaves products in 16 bits and exp, pow, sum, softmax, layer_norm and norm in float32; on a CPU "
    "it keeps fewer of these in float32",
    {"exp", "pow", "sum", "softmax", "layer_norm", "norm"} <= set(careful_on_gpu)
    and not {"matmul", "linear", "relu"} & set(careful_on_gpu)
    and len(careful_on_cpu) < len(careful_on_gpu),
    before=len(careful_on_cpu),
    after=len(careful_on_gpu),
    unit=f"of {len(on_gpu)} in float32",
    source=runs["lists"],
)


# %% [markdown]
# So a test on a CPU does not show what autocast protects on a GPU, and formulas of your own are protected on neither once you leave autocast, or call `.half()`.
#
# **Make: normalise rows with next to no wide numbers.** `normalise` is given 256 rows of 1024 numbers in float16, each of very different size, and gives each row divided by its root mean square, in float16. As it stands, squares overflow and vanish. `x.float()` would mend that and write 262,144 wide numbers, which is what you wanted to avoid. Write it so that at most 1,024 numbers are wide, four for each row. `L.hint("normalise")` helps, three times.

# %% tags=["exercise"]
def normalise(x):
    """Rows of float16, each over its root mean square, in float16."""
    # <blank> which single number of each row has to be wide?
    # was: return x / x.pow(2).mean(dim=-1, keepdim=True).sqrt()
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return x * (x.shape[-1] ** 0.5 / norm).half()
    # </blank>


written, problem = half_precision.judged(normalise)
print(problem or "right, and finite")

# %% tags=["claim"]
display(L.score("normalise", written))
L.claim(
    f"rows whose squares float16 cannot hold are normalised right with at most {half_precision.WIDE_PAR:,} wide numbers",
    written is not None and written <= half_precision.WIDE_PAR,
    before=half_precision.ROWS * half_precision.COLUMNS,
    after=written,
    unit="wide numbers",
    source=COUNTED,
)

# %% [markdown]
# ## Putting it into a loop
#
# ### 08.11 In Keras: a policy for layers
#
# Keras says all of it in one line, a policy for the layers made after it:
#
# ```python
# keras.mixed_precision.set_global_policy("mixed_float16")
# outputs = keras.layers.Dense(10, activation="softmax", dtype="float32")(x)  # the last layer, by hand
# ```
#
# | in PyTorch | in Keras |
# |---|---|
# | `torch.autocast(..., dtype=torch.float16)`, by operator | policy `mixed_float16`, by layer |
# | parameters stay float32 | `variable_dtype` is float32, `compute_dtype` float16 |
# | `GradScaler` around the optimizer | `compile` wraps the optimizer in a `LossScaleOptimizer` |
# | softmax and losses are on a list | you give the last layer `dtype="float32"` |
# | `dtype=torch.bfloat16`, no scaler | `mixed_bfloat16`, no wrapping |
#
# This section is for reading; TensorFlow is not needed for this course.

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "a"
# </blank>
L.check("keras", answer)

# %% [markdown]
# ### 08.6 The snippet from the article
#
# One article shows `from torch.cuda.amp import autocast, GradScaler`, then `scaler = GradScaler()` and `with autocast():`, and saves the scaler beside the model. Two things to test: what that spelling does today, and what the scaler is needed for when a run is resumed.

# %% tags=["predict"]
L.predict("resume")


# %% tags=["worked"]
def as_in_the_article():
    from torch.cuda.amp import GradScaler, autocast

    GradScaler()
    with autocast():
        pass


def device_neutral():
    # <fix>
    # was: as_in_the_article()
    torch.amp.GradScaler(L.device)
    with torch.autocast(L.device, dtype=torch.float16):
        pass
    # </fix>


def resumable(steps, saved=None, parts=("model", "optimizer", "scaler")):
    """Train for some steps, beginning with these parts of a checkpoint if there is one; gives a checkpoint."""
    model = half_precision.detector(RATE).to(L.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(L.device, growth_interval=4)
    now = {"model": model, "optimizer": optimizer, "scaler": scaler}
    for part in parts if saved else ():
        now[part].load_state_dict(saved[part])
    for _ in range(steps):
        with torch.autocast(L.device, dtype=torch.float16):
            outputs = model(features[:4096].to(L.device)).squeeze(1)
            loss = functional.binary_cross_entropy_with_logits(outputs.float(), defect[:4096].to(L.device))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)  # before gradients are clipped: else scaled ones are
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return precision_tables.stored({part: each.state_dict() for part, each in now.items()})


old, new = precision_tables.warned(as_in_the_article), precision_tables.warned(device_neutral)
whole, half_way = resumable(20), resumable(10)
without = ("model", "optimizer")
# <fix>
# was: resumed = resumable(10, half_way, without)
resumed = resumable(10, half_way)
# </fix>
forgetful = resumable(10, half_way, without)
print(f"the article's spelling: {old.count('FutureWarning')} FutureWarnings; torch.amp: {len(new)} warnings")
scales = {"20 steps": whole, "10 and 10 more": resumed, "the same without the scaler": forgetful}
for name, each in scales.items():
    print(f"{name:28} scale {each['scaler']['scale']:11,.0f}")

# %% tags=["claim"]
display(L.reveal("resume"), L.same(whole, resumed))
L.claim(
    "torch.amp warns of nothing where the article's spelling gives 2 FutureWarnings; resumed with the scaler, a run "
    "ends with the same weights and scale, without it at another scale",
    old.count("FutureWarning") == 2
    and not new
    and resumed["scaler"]["scale"] == whole["scaler"]["scale"]
    and forgetful["scaler"]["scale"] != whole["scaler"]["scale"],
    before=forgetful["scaler"]["scale"],
    after=resumed["scaler"]["scale"],
    unit="scale",
    source=COUNTED,
)

# %% [markdown]
# The old spelling still works on a CUDA GPU, for now. On a machine without one it also turns itself off, with another warning: the code then trains in float32. With bfloat16 you need no scaler at all, and nothing of this section.
#

# %% [markdown]
# ## Another symptom
#
# Someone shows you the log of another run. Which of its lines tells the cause from its rivals, and what do you do first?

# %% tags=["check"]
# <blank> "a", "b" or "c"
# was: answer = None
answer = "b"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## What you take with you
#
# Begin with one line, TF32, where it is off. Then autocast in bfloat16 where the GPU has it, from Ampere on; on older GPUs float16 with a scaler, saved in the checkpoint. Then look at the report again: once the products are fast, what is left waits for memory, and tensor cores change nothing there. What the memory holds besides activations is the subject of [09 Memory](09_memory_anatomy_and_oom.ipynb).

# %% tags=["card"]
L.card()
