# %% [markdown]
# # 10 Memory savers: what does each one save, and what does it cost?
#
# Notebook [09](09_memory_anatomy_and_oom.ipynb) asked what fills the memory. This one takes the parts one by one, and tries what engineers do when a part is too large: compute activations again, move them away, store fewer bits, or divide the rest among GPUs. Each of them has a price: arithmetic, copies, communication or accuracy. You write the important line of each, and measure both sides.
#
# It takes 55 minutes and needs no GPU. Bytes are *counted*: a counter follows every tensor that an operator creates until it is freed. Two ranks of a real job run on your CPU. Only offloading uses a virtual GPU if there is no real one.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("10_memory_savers")
L

# %% tags=["setup"]
import copy
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

from gpulab import synthetic
from gpulab.lessons import COUNTED, MEASURED, SIMULATED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.memory import eight_bit, memory_counters, pipeline, saver_budget, sharded_training
from gpulab.lessons.labs.memory.live_bytes import count_live_bytes
from gpulab.views.charts.drawing import plots

MIB = 2**20
torch.set_num_threads(1)

# %% [markdown]
# ## The symptom
#
# 64 layers, a batch of 512 rows, and a device with 32 MiB left beside the weights. Count what one step needs. The *meta* device has no memory: operators only compute shapes there, so the count takes no time.

# %% tags=["given"]
WIDTH, LAYERS, ROWS = 256, 64, 512


def make_layers():
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)])


def peak_mib(forward, device="meta"):
    """Return the peak of the memory that a forward and a backward pass allocate, in MiB."""
    with torch.device(device):
        layers, x = make_layers(), torch.randn(ROWS, WIDTH, requires_grad=True)
        with count_live_bytes() as live:
            forward(layers, x).square().mean().backward()
    return live.peak_bytes / MIB


plain_mib = peak_mib(lambda layers, x: layers(x))
print(f"one step needs {plain_mib:.1f} MiB, in addition to the weights")

# %% [markdown]
# ## Activations
#
# ### 10.1 Checkpointing: store less, compute again
#
# Each layer stores two tensors for the backward pass, 1 MiB together. With *activation checkpointing*, you divide the layers into segments, store only the input of each segment, and compute the rest of a segment again when the backward pass needs it.

# %% tags=["predict"]
L.predict("segments")

# %% [markdown]
# `checkpoint_sequential(layers, segments, x, use_reentrant=False)` does all of it. Use it in the function below.

# %% tags=["measure"]
SEGMENTS = (2, 4, 8, 16, 32, 64)


def forward_in(segments, layers, x):
    """Run the layers in this number of checkpointed segments."""
    # <blank> checkpoint the layers in `segments` segments
    # was: return layers(x)
    return checkpoint_sequential(layers, segments, x, use_reentrant=False)
    # </blank>


def gigaflops(forward):
    """Return the arithmetic of a forward and a backward pass, in GFLOP."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        forward(make_layers(), torch.randn(ROWS, WIDTH, requires_grad=True)).square().mean().backward()
    return counter.get_total_flops() / 1e9


peaks = {segments: peak_mib(partial(forward_in, segments)) for segments in SEGMENTS}
arithmetic = {segments: gigaflops(partial(forward_in, segments)) for segments in SEGMENTS}
plain_gigaflops = gigaflops(lambda layers, x: layers(x))
best = min(peaks, key=peaks.get)
plots.line_plot(
    f"{best} segments need the least memory",
    {"with checkpointing": peaks, "without": dict.fromkeys(SEGMENTS, plain_mib)},
    x="segments",
    y="peak, MiB",
    source=COUNTED,
    log_x=True,
)

# %% tags=["claim"]
display(L.reveal("segments", best, "segments"))
more = arithmetic[8] / plain_gigaflops - 1
L.claim(
    "with 8 segments, the peak falls to less than 40 %, and a step computes 25 to 35 % more",
    peaks[8] < 0.4 * plain_mib and 0.25 <= more <= 0.35 and len(set(peaks.values())) > 3,
    before=plain_mib,
    after=peaks[8],
    unit="MiB",
    source=COUNTED,
)

# %% [markdown]
# The price is one more forward pass: a third of the arithmetic of a step, because the backward pass is twice as expensive as the forward pass. (It is a little less, because `checkpoint_sequential` does not checkpoint the last segment.) The gradients are the same: check it on the CPU, with real numbers.

# %% tags=["same"]
torch.manual_seed(0)
layers, x = make_layers(), torch.randn(ROWS, WIDTH)


def first_gradient(forward):
    layers.zero_grad()
    forward(layers, x).square().mean().backward()
    return layers[0][0].weight.grad.clone()


L.same(first_gradient(lambda layers, x: layers(x)), first_gradient(partial(forward_in, 8)))

# %% [markdown]
# ### 10.2 Compute again only what is cheap
#
# Not everything costs the same to compute again. The feed-forward part of a transformer block has a LayerNorm, a large matrix product, a GELU and a second product. LayerNorm and GELU are cheap, but their results are as large as those of the products. PyTorch lets you decide per operator: a *policy* says which results a checkpointed block stores.

# %% tags=["predict"]
L.predict("selective")


# %% tags=["measure"]
def keep_products(context, operator, *args, **kwargs):
    """Store the results of matrix products; compute all others again."""
    # <blank> MUST_SAVE for torch.ops.aten.addmm.default and mm.default, PREFER_RECOMPUTE for all others
    # was: return CheckpointPolicy.MUST_SAVE
    is_product = operator in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE
    # </blank>


policy = partial(create_selective_checkpoint_contexts, keep_products)
CALLS = {
    "nothing again": lambda block, x: block(x),
    "all but products": partial(checkpoint, use_reentrant=False, context_fn=policy),
    "everything": partial(checkpoint, use_reentrant=False),
}


def run_blocks(call):
    blocks, x = saver_budget.make_blocks(), torch.randn(2048, 256, requires_grad=True)
    for block in blocks:
        x = call(block, x)
    x.square().mean().backward()


block_peaks, block_flops = {}, {}
for name, call in CALLS.items():
    with torch.device("meta"):
        with count_live_bytes() as live:
            run_blocks(call)
        with FlopCounterMode(display=False) as counter:
            run_blocks(call)
    block_peaks[name], block_flops[name] = live.peak_bytes / MIB, counter.get_total_flops() / 1e9
tables.table_view(
    ("computed again", "peak, MiB", "GFLOP"),
    [(name, f"{block_peaks[name]:.0f}", f"{block_flops[name]:.1f}") for name in CALLS],
    below="Counted here, for twelve blocks, weights included.",
)

# %% tags=["claim"]
extra = block_flops["all but products"] / block_flops["nothing again"] - 1
display(L.reveal("selective", extra, "%"))
L.claim(
    "computing everything but matrix products again saves at least a quarter of the peak without one more product",
    block_peaks["all but products"] <= 0.75 * block_peaks["nothing again"] and extra == 0,
    before=block_peaks["nothing again"],
    after=block_peaks["all but products"],
    unit="MiB",
    source=COUNTED,
)

# %% [markdown]
# `torch.compile` makes such a choice by itself (10.10), and so do the *selective* modes of large training frameworks. On a GPU, computing LayerNorm and GELU again still takes some time, because they are limited by the memory bandwidth (notebook [12](12_launch_fusion_graphs.ipynb)).

# %% [markdown]
# ## States and weights
#
# ### 10.3 Adam's state in 8 bits
#
# Adam stores two moments for each parameter, 8 bytes in float32: twice as much as float32 weights, whatever the size of the model. Store them in blocks of 64 numbers: scale each block so that its largest absolute value becomes 127, and round to integers. (Of the second moment, the square root is stored.)

# %% tags=["predict"]
L.predict("eight")


# %% tags=["measure"]
def quantize(blocks):
    """Return blocks (rows of 64 numbers) as int8, and a scale for each row."""
    # <blank> a scale per row, so that the largest number becomes 127; round, and convert to torch.int8
    # was: return blocks, torch.ones(len(blocks), 1)
    scale = blocks.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127
    return (blocks / scale).round().to(torch.int8), scale
    # </blank>


def dequantize(values, scale):
    return values.float() * scale


inputs, labels = map(torch.as_tensor, synthetic.table(2048, 32))


def make_classifier():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 4))


def train(model, optimizer, inputs=inputs, epochs=6):
    """Train, and return the loss on all samples."""
    for _ in range(epochs):
        for start in range(0, len(inputs), 64):
            loss = functional.cross_entropy(model(inputs[start : start + 64]), labels[start : start + 64])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return functional.cross_entropy(model(inputs), labels).item()


losses, state_bytes = {}, {}
for name, functions in {"float32": (), "8 bits": (quantize, dequantize)}.items():
    model = make_classifier()
    optimizer = eight_bit.BlockAdam(model.parameters(), 1e-3, *functions)
    losses[name] = train(model, optimizer)
    state_bytes[name] = optimizer.state_bytes / sum(parameter.numel() for parameter in model.parameters())
    print(f"{name:8} {state_bytes[name]:.2f} bytes of state per parameter, loss {losses[name]:.4f}")

# %% tags=["claim"]
change = abs(losses["8 bits"] / losses["float32"] - 1)
display(L.reveal("eight", change, "%"))
L.claim(
    "in 8 bits, Adam's state takes less than 30 % of the bytes, and the loss after training differs by less than 5 %",
    state_bytes["8 bits"] < 0.3 * state_bytes["float32"] and change < 0.05,
    before=state_bytes["float32"],
    after=state_bytes["8 bits"],
    unit="bytes per parameter",
    source=MEASURED,
)

# %% [markdown]
# Other optimizers store less from the start: SGD with momentum 4 bytes per parameter, and Adafactor keeps one number for each row and each column of a matrix. The next cell counts them for one layer. In your own code, `bitsandbytes` and `torchao` have 8-bit versions of Adam.

# %% tags=["worked"]
layer = nn.Linear(1024, 1024, bias=False)
for kind, options in {"Adam": {}, "SGD": {"momentum": 0.9}, "Adafactor": {}}.items():
    optimizer = getattr(torch.optim, kind)(layer.parameters(), lr=1e-3, **options)
    layer(torch.ones(1, 1024)).sum().backward()
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    stored = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    print(f"{kind:10} {stored / layer.weight.numel():.2f} bytes per parameter")

# %% [markdown]
# ### 10.4 Divide it among ranks: DDP, ZeRO-1, FSDP
#
# With several GPUs, each rank need not store everything. With `DistributedDataParallel` (DDP), every rank stores all weights, gradients and optimizer state. ZeRO-1 divides the optimizer's state. FSDP (*fully sharded data parallel*, ZeRO-3) divides all three, and gathers the weights of a layer just before it runs.

# %% tags=["predict"]
L.predict("ranks")

# %% [markdown]
# Write down the bytes per parameter that each of N ranks stores, for float32 and Adam. Then two real ranks train on this machine, exchange data by gloo, and report what they store.

# %% tags=["measure"]
RANKS = sharded_training.RANKS


def bytes_per_parameter(ranks):
    """Return the bytes that each rank stores per parameter: weights 4, gradients 4, Adam's state 8."""
    # <blank> which of the three parts does each strategy divide by the number of ranks?
    # was: return {"DDP": 16, "ZeRO-1": 16, "FSDP": 16}
    return {"DDP": 4 + 4 + 8, "ZeRO-1": 4 + 4 + 8 / ranks, "FSDP": (4 + 4 + 8) / ranks}
    # </blank>


stored = sharded_training.stored_by_strategy()
parameters = sharded_training.weight_count()
measured = {name: max(rank.total for rank in ranks) / parameters for name, ranks in stored.items()}
expected = bytes_per_parameter(RANKS)
tables.table_view(
    ("bytes per parameter and rank", "by formula", "on two ranks"),
    [(name, f"{expected[name]:.1f}", f"{measured[name]:.1f}") for name in measured],
)

# %% tags=["claim"]
display(L.reveal("ranks"))
same_loss = max(abs(rank.loss - stored["DDP"][0].loss) for ranks in stored.values() for rank in ranks) < 1e-6
L.claim(
    "the bytes that two real ranks store are within 1 % of the formula for DDP, ZeRO-1 and FSDP, and the loss is the "
    "same",
    same_loss and all(abs(measured[name] / expected[name] - 1) < 0.01 for name in measured),
    before=measured["DDP"],
    after=measured["FSDP"],
    unit="bytes per parameter",
    source=MEASURED,
)

# %% [markdown]
# The price is communication. DDP all-reduces the gradients: in a ring of many ranks, each sends about twice the bytes of the weights per step. FSDP gathers the weights twice and reduce-scatters the gradients once, half as much again. FSDP pays if the link is fast, or if nothing else fits. Not counted here: DDP and this ZeRO-1 also keep buckets for communication, 4 more bytes per parameter unless you pass `gradient_as_bucket_view=True`.
#
# ### 10.5 LoRA: train two thin matrices
#
# To adapt a large model to new data, you need not train its weights. *LoRA* freezes each weight matrix W and trains two thin matrices beside it: the layer computes `x @ W + (x @ A) @ B`, with A of 32 x 4, for example, and B of 4 x 128. B begins as zero, so the model begins as it was. Write the forward pass. (The data, the model and `train` are those of 10.3: after a restart of the kernel, run 10.3 first.)

# %% tags=["predict"]
L.predict("adapters")


# %% tags=["measure"]
class Adapted(nn.Module):
    """A frozen layer with two thin matrices beside it."""

    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(layer.in_features, rank) / layer.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(rank, layer.out_features))

    def forward(self, x):
        # <blank> the frozen layer, plus x times both thin matrices
        # was: return self.layer(x)
        return self.layer(x) + (x @ self.a) @ self.b
        # </blank>


def adapted(model, rank):
    return nn.Sequential(*[Adapted(part, rank) if isinstance(part, nn.Linear) else part for part in model])


base = make_classifier()
train(base, torch.optim.Adam(base.parameters(), 1e-3))
shuffled = inputs[:, torch.randperm(32, generator=torch.Generator().manual_seed(1))]  # the columns in another order
with torch.no_grad():
    loss_before = functional.cross_entropy(base(shuffled), labels).item()
lora = adapted(copy.deepcopy(base), rank=4)
trained = [parameter for parameter in lora.parameters() if parameter.requires_grad]
saved = {
    "all weights": memory_counters.saved_bytes(lambda: base(shuffled), base),
    "LoRA": memory_counters.saved_bytes(lambda: lora(shuffled), lora),
}
try:
    loss_after = train(lora, torch.optim.Adam(trained, 5e-3), shuffled)
except RuntimeError as error:  # nothing that is trained takes part in the forward pass
    print(error)
    loss_after = loss_before
lora_share = sum(parameter.numel() for parameter in trained) / sum(parameter.numel() for parameter in base.parameters())
print(f"loss on the new data: {loss_before:.2f} before, {loss_after:.2f} after; {lora_share:.0%} of weights trained")
print(f"saved for backward: all weights {saved['all weights'] / MIB:.1f} MiB, LoRA {saved['LoRA'] / MIB:.1f} MiB")

# %% tags=["claim"]
display(L.reveal("adapters", saved["LoRA"] / saved["all weights"], "%"))
L.claim(
    "LoRA trains a tenth of the parameters and reduces the loss to less than a tenth, but for the backward pass, it "
    "stores at least 90 % as many bytes as full training",
    lora_share < 0.11 and loss_after < 0.1 * loss_before and saved["LoRA"] >= 0.9 * saved["all weights"],
    before=loss_before,
    after=loss_after,
    unit="(loss)",
    source=MEASURED,
)

# %% [markdown]
# For a layer of 4,096 x 4,096, rank 4 is 0.2 % of the parameters. Gradients and states shrink to that; activations do not.

# %% [markdown]
# ## Exercise: a budget
#
# ### 10.6 160 MiB
#
# Twelve blocks train with Adam, and need 325 MiB. Make the step fit into 160 MiB at the lowest cost. `saver_budget.SAVERS` lists what you can use; the target is a step without more arithmetic, as the FLOP counter counts it: LayerNorm and GELU cost nothing there.

# %% tags=["exercise"]
for name, effect in saver_budget.SAVERS.items():
    print(f"{name:11} {effect}")
# <blank> a list of savers, for example savers = ["checkpoint", "8bit"]
# was: savers = []
savers = ["selective", "halves", "8bit"]
# </blank>
outcome = saver_budget.try_savers(savers)
display(saver_budget.saver_table([saver_budget.try_savers([]), saver_budget.try_savers(["checkpoint"]), outcome]))
L.score("budget", outcome.cost if outcome.fits else None)

# %% tags=["claim"]
L.claim(
    "three savers that add no matrix product fit the step into less than half of its memory; checkpointing alone does, "
    "too, but adds a sixth of the arithmetic",
    outcome.fits and outcome.cost == 100 and saver_budget.try_savers(["checkpoint"]).cost >= 115,
    before=saver_budget.try_savers([]).peak_bytes / MIB,
    after=outcome.peak_bytes / MIB,
    unit="MiB",
    source=COUNTED,
)

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 10.7 Offloading: move activations to the host
#
# The host has more memory than the GPU. Autograd lets you replace each saved tensor: `pack` is called when it is saved, `unpack` when it is needed. Write `pack`. Its copies block here, so they do not overlap with kernels; PyTorch's own version, `torch.autograd.graph.save_on_cpu(pin_memory=True)`, copies asynchronously.

# %% tags=["predict"]
L.predict("offload")


# %% tags=["measure"]
def pack(tensor):
    """Move activations to the host; weights, which autograd saves as well, stay on the GPU anyway."""
    # <blank> tensor.to("cpu") if it has a row for each sample (ROWS of them), else the tensor
    # was: return tensor
    return tensor.to("cpu") if len(tensor) == ROWS else tensor
    # </blank>


def unpack(tensor):
    """Fetch a saved tensor back."""
    return tensor.to("cuda")


def offloaded_step(name, hooks):
    """Record a step of the 64 layers; return its peak beyond the weights, and the bytes that crossed the link."""
    with L.gpu(name):
        layers = make_layers().to("cuda")
        x = torch.randn(ROWS, WIDTH, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            loss = layers(x * 1).square().mean()
        loss.backward()
        peak = torch.cuda.max_memory_allocated() - before
    events = gpulab.runs[name].events
    copies = events[(events["kind"] == "memcpy") & (events["bytes"] > 100_000)]  # not the weights, which are smaller
    moved = copies[copies["name"].str.contains("DtoH|HtoD")]
    return peak, int(moved["bytes"].sum())


kept_peak, _ = offloaded_step("kept", (lambda tensor: tensor, lambda tensor: tensor))
offloaded_peak, moved_bytes = offloaded_step("offloaded", (pack, unpack))
weights_moved = sum(parameter.nbytes for parameter in make_layers().parameters() if parameter.nbytes > 100_000)
activation_bytes = moved_bytes - weights_moved  # the weights went to the GPU once
print(
    f"peak {kept_peak / MIB:.0f} -> {offloaded_peak / MIB:.0f} MiB; {activation_bytes / MIB:.0f} MiB activations moved"
)

# %% tags=["claim"]
display(L.reveal("offload"))
L.claim(
    "offloading lowers the peak to less than half, and moves each activation twice: 128 MiB for 64 MiB",
    offloaded_peak < 0.5 * kept_peak and abs(activation_bytes / (128 * MIB) - 1) < 0.05,
    before=kept_peak / MIB,
    after=offloaded_peak / MIB,
    unit="MiB",
    source=gpulab.runs["offloaded"],
)

# %% [markdown]
# ### 10.8 Weights in 8 bits
#
# For inference, weights can be stored in 8 bits, a quarter of float32. The scale decides how much is lost: one for the whole matrix, or one for each row. Here is an extreme case: a matrix whose rows differ a hundredfold in size.

# %% tags=["predict"]
L.predict("rows")

# %% tags=["measure"]
torch.manual_seed(0)
weights = torch.randn(64, 256) * torch.logspace(-2, 0, 64)[:, None]


def worst_row_error(scale):
    """Return the largest relative error of a row, if weights are stored as int8 with this scale."""
    restored = (weights / scale).round().clamp(-127, 127) * scale
    return ((restored - weights).norm(dim=1) / weights.norm(dim=1)).max().item()


by_matrix = worst_row_error(weights.abs().max() / 127)
# <blank> a scale for each row
# was: by_row = worst_row_error(weights.abs().max() / 127)
by_row = worst_row_error(weights.abs().amax(dim=1, keepdim=True) / 127)
# </blank>
plots.bar_plot(
    f"Error of the worst row: {by_matrix:.0%} with one scale, {by_row:.1%} with the other",
    {"one scale": 100 * by_matrix, "a scale per row": 100 * by_row},
    x="error of the worst row, %",
    source=MEASURED,
)

# %% tags=["claim"]
display(L.reveal("rows"))
L.claim(
    "with one scale, the worst row of an int8 matrix has a relative error of more than 50 %; with a scale per row, of "
    "at most 2 %",
    by_matrix > 0.5 and by_row < 0.02,
    before=by_matrix,
    after=by_row,
    unit="%",
    source=MEASURED,
)


# %% [markdown]
# ### 10.9 Layers on several devices: the bubble
#
# A model that fits on no single GPU can be split by layers: device 1 has the first part, device 2 the next. But device 2 waits for device 1. Micro-batches shorten this wait, the *bubble*: while device 2 works on the first, device 1 works on the second. The next cell simulates such a pipeline. Write the formula for the idle share, with `p` devices and `m` micro-batches.

# %% tags=["measure"]
def bubble(p, m):
    """Return the idle share of the devices: each works for m slots of a total of m + p - 1."""
    # <blank> idle slots, divided by all slots
    # was: return 0.0
    return (p - 1) / (m + p - 1)
    # </blank>


simulated = {m: pipeline.idle_frac(4, m) for m in (1, 2, 4, 8, 16, 32)}
plots.line_plot(
    "More micro-batches make the bubble smaller",
    {
        "simulated": {m: 100 * share for m, share in simulated.items()},
        "formula": {m: 100 * bubble(4, m) for m in simulated},
    },
    x="micro-batches",
    y="idle time of four devices, %",
    source=SIMULATED,
    log_x=True,
)

# %% tags=["claim"]
L.claim(
    "in a simulated pipeline of 4 devices, the idle share is (p - 1) / (m + p - 1): 75 % with one micro-batch, less "
    "than 10 % with 32",
    all(abs(bubble(4, m) - share) < 0.01 for m, share in simulated.items()) and simulated[32] < 0.1,
    before=simulated[1],
    after=simulated[32],
    unit="%",
    source=SIMULATED,
)

# %% [markdown]
# ### 10.10 What a compiler saves
#
# `torch.compile` sees the forward and the backward pass before either runs, and decides what to store.

# %% tags=["predict"]
L.predict("compiled")


# %% tags=["measure"]
def gated(x, w):
    h = x @ w
    return (functional.gelu(h) * torch.sigmoid(h) * torch.tanh(h) + 1).square().mean()


rows, matrix = torch.randn(1024, 256), torch.randn(256, 256, requires_grad=True)
# <blank> compile `gated`; backend="aot_eager_decomp_partition" partitions without generating code, in seconds
# was: compiled = gated
compiled = torch.compile(gated, backend="aot_eager_decomp_partition")
# </blank>
eager_saved = memory_counters.saved_bytes(lambda: gated(rows, matrix))
compiled_saved = memory_counters.saved_bytes(lambda: compiled(rows, matrix))
print(f"saved for backward: eager {eager_saved / MIB:.0f} MiB, compiled {compiled_saved / MIB:.0f} MiB")

# %% tags=["claim"]
display(L.reveal("compiled"), L.same(gated(rows, matrix).detach(), compiled(rows, matrix).detach()))
L.claim(
    "eager PyTorch saves 7 MiB for the backward pass of a chain of functions, a compiled one at most 2 MiB",
    eager_saved == 7 * MIB and compiled_saved <= 2 * MIB,
    before=eager_saved / MIB,
    after=compiled_saved / MIB,
    unit="MiB",
    source=COUNTED,
)

# %% [markdown]
# ### 10.11 A branch that does not run
#
# Here is a model with an expensive and a cheap branch; for this batch, the cheap one is right. The colleague's version computes both and selects.

# %% tags=["predict"]
L.predict("branch")

# %% tags=["measure"]
expensive = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(8)])
cheap = nn.Linear(256, 256)
batch = torch.randn(512, 256)


def by_mask(x, use_expensive):
    return torch.where(torch.tensor(use_expensive), expensive(x), cheap(x))


def by_if(x, use_expensive):
    # <blank> run one of the two
    # was: return by_mask(x, use_expensive)
    return expensive(x) if use_expensive else cheap(x)
    # </blank>


both = nn.ModuleList([expensive, cheap])
mask_bytes, if_bytes = (
    memory_counters.saved_bytes(lambda select=select: select(batch, False), both) for select in (by_mask, by_if)
)
print(f"saved for backward: {mask_bytes / MIB:.1f} MiB with the mask, {if_bytes / MIB:.1f} MiB with `if`")

# %% tags=["claim"]
display(L.reveal("branch"), L.same(by_mask(batch, False).detach(), by_if(batch, False).detach()))
L.claim(
    "with a mask, both branches are saved for the backward pass; with `if`, only the one that runs: less than a tenth",
    if_bytes < 0.1 * mask_bytes,
    before=mask_bytes / MIB,
    after=if_bytes / MIB,
    unit="MiB",
    source=COUNTED,
)

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
# Ask which part fills the memory at the peak, and shrink that part. Activations: selective checkpointing first, complete checkpointing if that is not enough, then micro-batches ([03](03_parallel_work_and_batch.ipynb)). Optimizer state: 8 bits, or ZeRO-1. Weights, gradients and states together: LoRA or FSDP. Before all of them, try mixed precision, which halves most activations ([08](08_mixed_precision.ipynb)), and for long sequences, fused attention ([14](14_attention.ipynb)).

# %% tags=["card"]
L.card()
