# %% [markdown]
# # 14 Attention: what does it store, and which kernel computes it?
#
# Attention compares each token with every other token. Written as separate operators, it stores a score for each pair, so its memory grows with the square of the sequence length. Fused kernels compute the same without storing the scores. Whether PyTorch uses one depends on details of your call. You find the tensor that fills the memory, replace one line, read why a kernel refuses, and write a key-value cache.
#
# It takes 50 minutes and needs no GPU: PyTorch has a fused attention kernel for CPUs, too, so nearly everything here runs for real.

# %% tags=["device"]
# %load_ext gpulab
import gpulab

L = gpulab.lab("14_attention")
L

# %% tags=["setup"]
import warnings
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.flop_counter import FlopCounterMode

from gpulab.lessons import COUNTED
from gpulab.lessons.labs import tables
from gpulab.lessons.labs.kernels.attention import backends, decoder, saved
from gpulab.lessons.labs.memory import memory_counters
from gpulab.views.charts.drawing import plots

torch.manual_seed(0)
torch.set_num_threads(1)
MIB = 2**20


# %% [markdown]
# ## The symptom
#
# A transformer trains well with 512 tokens. With 4,096 tokens, eight times as many, it needs far more than eight times the memory. Here is its attention, as textbooks write it.

# %% tags=["given"]
def textbook_attention(query, key, value):
    """Attention of shape (batch, heads, tokens, head size)."""
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    return torch.softmax(scores, dim=-1) @ value


class Block(nn.Module):
    """A block of a transformer; `attend` computes its attention."""

    def __init__(self, attend, width=256, heads=4):
        super().__init__()
        self.attend, self.heads = attend, heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projection, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.projection(self.first_norm(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = self.attend(*parts.unbind(0)).transpose(1, 2).reshape(batch, tokens, width)
        x = x + self.out(attended)
        return x + self.narrow(functional.gelu(self.wide(self.second_norm(x))))


def block_saved(attend, tokens):
    """Return the bytes that a block saves for the backward pass, by shape; on the meta device, which has no memory."""
    with torch.device("meta"):
        block, x = Block(attend), torch.empty(1, tokens, 256)
        return saved.saved_by_shape(lambda: block(x), block)


for tokens in (512, 4096):
    print(f"{tokens:5,} tokens: {sum(block_saved(textbook_attention, tokens).values()) / MIB:6.1f} MiB for each block")

# %% [markdown]
# ## Find and replace
#
# ### 14.1 Which tensor is it?
#
# Before you change anything, look at what is saved. The shape tells which operator made a tensor.

# %% tags=["predict"]
L.predict("largest")

# %% tags=["measure"]
by_shape = block_saved(textbook_attention, 4096)
saved.saved_table(by_shape)

# %% [markdown]
# Name the operation of `textbook_attention` that makes this tensor: `"scores"` (the first product, and the division), `"softmax"`, or `"product"` (the last product, with `value`). The backward pass tells: which of them needs its own result?

# %% tags=["check"]
# <blank> "scores", "softmax" or "product"
# was: maker = None
maker = "softmax"
# </blank>
L.check("maker", maker)

# %% tags=["claim"]
largest_share = max(by_shape.values()) / sum(by_shape.values())
display(L.reveal("largest", largest_share, "%"))
L.claim(
    "with 4,096 tokens, one tensor of a block, the result of softmax, is more than half of all that it saves",
    maker == "softmax" and next(iter(by_shape)) == (1, 4, 4096, 4096) and largest_share > 0.5,
    after=largest_share,
    unit="%",
    source=COUNTED,
)

# %% [markdown]
# ### 14.2 One line: scaled_dot_product_attention
#
# `functional.scaled_dot_product_attention` (SDPA) computes the same in one operator. Its flash kernel works tile by tile: it keeps a running maximum and a running sum for each row, and never stores the scores. The backward pass computes them again.

# %% tags=["predict"]
L.predict("fused")


# %% tags=["measure"]
def attention(query, key, value):
    # <blank> one call of PyTorch
    # was: return textbook_attention(query, key, value)
    return functional.scaled_dot_product_attention(query, key, value)
    # </blank>


query, key, value = (torch.randn(2, 4, 512, 64, requires_grad=True) for _ in range(3))
saved_bytes = {
    function.__name__: memory_counters.saved_bytes(partial(function, query, key, value))
    for function in (textbook_attention, attention)
}
for name, count in saved_bytes.items():
    print(f"{name:18} {count / MIB:5.1f} MiB saved for the backward pass of 512 tokens")

# %% tags=["same"]
L.same(textbook_attention(query, key, value).detach(), attention(query, key, value).detach(), 1e-4)

# %% tags=["claim"]
textbook_bytes, fused_bytes = saved_bytes.values()
display(L.reveal("fused", fused_bytes / textbook_bytes, "%"))
L.claim(
    "the fused kernel saves query, key, value, its result and one number per row: 4 MiB instead of 11 with 512 tokens",
    textbook_bytes == 11 * MIB and 4 * MIB < fused_bytes < 4.1 * MIB,
    before=textbook_bytes / MIB,
    after=fused_bytes / MIB,
    unit="MiB",
    source=COUNTED,
)

# %% [markdown]
# ### 14.3 Sequence length: memory and arithmetic
#
# Write down what the textbook version saves: query, key and value, and the softmax of all pairs. Compare it with the count, from 128 to 2,048 tokens.

# %% tags=["predict"]
L.predict("length")

# %% tags=["measure"]
BATCH, HEADS, SIZE = 1, 2, 64
LENGTHS = (128, 256, 512, 1024, 2048)


def textbook_formula(tokens):
    """Return the bytes that textbook attention saves, for float32."""
    # <blank> BATCH * HEADS, times 4 bytes, times (three tensors of tokens x SIZE, and one of tokens x tokens)
    # was: return 4 * BATCH * HEADS * 3 * tokens * SIZE
    return 4 * BATCH * HEADS * (3 * tokens * SIZE + tokens**2)
    # </blank>


def count_saved(function, tokens):
    tensors = [torch.randn(BATCH, HEADS, tokens, SIZE, requires_grad=True) for _ in range(3)]
    return memory_counters.saved_bytes(partial(function, *tensors))


def count_flops(tokens):
    """Return the arithmetic of textbook attention; the fused kernel computes the same products."""
    tensors = [torch.empty(BATCH, HEADS, tokens, SIZE, device="meta") for _ in range(3)]
    with FlopCounterMode(display=False) as counter:
        textbook_attention(*tensors)
    return counter.get_total_flops()


textbook_saved = {tokens: count_saved(textbook_attention, tokens) for tokens in LENGTHS}
fused = functional.scaled_dot_product_attention
fused_saved = {tokens: count_saved(fused, tokens) for tokens in LENGTHS}
flops = {tokens: count_flops(tokens) for tokens in LENGTHS}
exponents = [memory_counters.growth_exponent(line) for line in (textbook_saved, fused_saved, flops)]
for name, exponent in zip(("saved, textbook", "saved, fused", "arithmetic"), exponents, strict=True):
    print(f"{name:16} grows with the power {exponent:.2f} of the length")
plots.line_plot(
    "Fused attention saves in proportion to the length",
    {
        "textbook": {tokens: count / MIB for tokens, count in textbook_saved.items()},
        "fused": {tokens: count / MIB for tokens, count in fused_saved.items()},
        "your formula": {tokens: textbook_formula(tokens) / MIB for tokens in LENGTHS},
    },
    x="tokens",
    y="MiB saved",
    source=COUNTED,
    log_x=True,
    log_y=True,
)

# %% tags=["claim"]
display(L.reveal("length", exponents[1]))
L.claim(
    "the formula gives the saved bytes of textbook attention exactly; fused, they grow in proportion to the length, "
    "but the arithmetic still grows with its square",
    all(textbook_formula(tokens) == count for tokens, count in textbook_saved.items())
    and exponents[1] < 1.05
    and abs(exponents[2] - 2) < 0.05,
    before=round(exponents[0], 2),
    after=round(exponents[1], 2),
    unit="as exponent",
    source=COUNTED,
)

# %% [markdown]
# So a fused kernel removes the quadratic memory of long sequences, but not their quadratic arithmetic. For that, attend to fewer tokens: a window (14.6), or fewer layers that attend to everything.

# %% [markdown]
# ## Which kernel ran?
#
# ### 14.4 Backends, and why they refuse a call
#
# For each call of SDPA, PyTorch chooses a *backend*: a flash kernel, a memory-efficient one, cuDNN's, or plain operators (*math*), which store the scores again. It chooses silently. `sdpa_kernel(SDPBackend.FLASH_ATTENTION)` allows only one, and PyTorch then says why it cannot be used. Here are four calls from real programs.

# %% tags=["predict"]
L.predict("refused")

# %% tags=["measure"]
q, k, v = (torch.randn(1, 4, 128, 64) for _ in range(3))
sdpa = functional.scaled_dot_product_attention
strided = q.transpose(-2, -1).contiguous().transpose(-2, -1)  # the same numbers, in another order
CALLS = {
    "causal": partial(sdpa, q, k, v, is_causal=True),
    "dropout": partial(sdpa, q, k, v, dropout_p=0.1),
    "three dimensions": partial(sdpa, q[0], k[0], v[0]),
    "strided": partial(sdpa, strided, k, v),
}
verdicts = {name: backends.flash_verdict(call) for name, call in CALLS.items()}
for name, verdict in verdicts.items():
    print(f"{name}: {'runs' if verdict.runs else verdict.reasons[0]}")

# %% [markdown]
# The second one is a bug as well: `functional` does not know about `model.eval()`, so this dropout is active during validation, too. Repair the calls so that the flash kernel takes all of them; for the second one, assume that the model is being evaluated.

# %% tags=["exercise"]
# <blank> {name: partial(sdpa, ...)}: without dropout; with a batch dimension, q[0][None]; with contiguous memory
# was: repaired = {name: CALLS[name] for name in ("dropout", "three dimensions", "strided")}
repaired = {
    "dropout": partial(sdpa, q, k, v, dropout_p=0.0),
    "three dimensions": partial(sdpa, q[0][None], k[0][None], v[0][None]),
    "strided": partial(sdpa, strided.contiguous(), k, v),
}
# </blank>
after = {name: backends.flash_verdict(call) for name, call in repaired.items()}
for name, verdict in after.items():
    print(f"{name}: {'runs' if verdict.runs else verdict.reasons[0]}")
L.score("repaired", sum(verdict.runs for verdict in after.values()) or None)

# %% tags=["claim"]
refused = [name for name, verdict in verdicts.items() if not verdict.runs]
display(L.reveal("refused", len(refused)))
L.claim(
    "the flash kernel refuses three of four calls, each for a different reason, and takes all of them after the "
    "repair, with the same result",
    refused == ["dropout", "three dimensions", "strided"]
    and set(after) == set(refused)
    and all(verdict.runs for verdict in after.values())
    and all(torch.allclose(call().reshape(v.shape), sdpa(q, k, v), atol=1e-5) for call in repaired.values()),
    before=sum(verdict.runs for verdict in verdicts.values()),
    after=verdicts["causal"].runs + sum(verdict.runs for verdict in after.values()),
    unit="calls that run fused",
    source=COUNTED,
)

# %% [markdown]
# The rules depend on the device. On CUDA, the flash kernel supports dropout, but takes float16 and bfloat16 only, head sizes up to 256, and no `attn_mask`: for a causal mask, pass `is_causal=True` instead of a tensor. With a mask, the memory-efficient kernel or cuDNN's takes over, which is often slower but stores no scores either; plain operators come last. Transformers writes attention out as separate operators with `attn_implementation="eager"`, which `output_attentions=True` needs. In a report of gpulab, the names of kernels tell which backend ran: `flash_fwd`, `fmha_cutlass`, `cudnn`, or `softmax` between two products.

# %% [markdown]
# ## Exercise: generate text
#
# ### 14.5 A key-value cache
#
# To generate a token, a decoder attends from the last token to all earlier ones. Without a cache, it runs the whole sequence again for each token. But keys and values of earlier tokens do not change: store them, and run only the new token.

# %% tags=["given"]
model, PROMPT, COUNT = decoder.make_decoder(), [3, 14, 15, 9], 48


def attend_again(query, key, value, cache):
    """Attend within the whole sequence."""
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


with FlopCounterMode(display=False) as counter:
    tokens_again = decoder.generate_again(model, PROMPT, COUNT, attend_again)
flops_again = counter.get_total_flops()
print(f"{COUNT} tokens without a cache: {flops_again / 1e6:.0f} MFLOP in linear layers")

# %% tags=["predict"]
L.predict("cache")


# %% tags=["exercise"]
def attend_cached(query, key, value, cache):
    """Attend from one new token to all tokens so far; `cache` is a dict of this layer, empty at first."""
    # <blank> append key and value to cache["key"] and cache["value"] along dimension 2, and attend to all of them
    # was: return functional.scaled_dot_product_attention(query, key, value)
    cache["key"] = torch.cat([cache["key"], key], dim=2) if cache else key
    cache["value"] = torch.cat([cache["value"], value], dim=2) if "value" in cache else value
    return functional.scaled_dot_product_attention(query, cache["key"], cache["value"])
    # </blank>


with FlopCounterMode(display=False) as counter:
    tokens_cached = decoder.generate_cached(model, PROMPT, COUNT, attend_cached)
flops_cached = counter.get_total_flops()
is_right = tokens_cached == tokens_again
print("the same tokens" if is_right else "other tokens than without a cache")
L.score("flops", round(flops_cached / 1e6) if is_right else None)

# %% tags=["claim"]
display(L.reveal("cache", flops_again / flops_cached, "times less"))
L.claim(
    "with a cache, 48 tokens need less than a twentieth of the arithmetic in linear layers, and are the same",
    is_right and flops_cached < flops_again / 20,
    before=flops_again / 1e6,
    after=flops_cached / 1e6,
    unit="MFLOP",
    source=COUNTED,
)

# %% [markdown]
# Two traps. `is_causal=True` together with a cache is wrong: PyTorch aligns its triangle at the *upper left*, so a single query attends to the first token only (`torch.nn.attention.bias.causal_lower_right` is the other triangle). And `torch.cat` copies the whole cache for each token, as the default cache of Transformers does: inference engines, and its `StaticCache`, allocate it once with room for all tokens, which also keeps its address for CUDA graphs (notebook [12](12_launch_fusion_graphs.ipynb)).

# %% [markdown]
# ## More experiments
#
# Optional. JupyterLab folds them: click on "cells hidden" below this text.

# %% [markdown]
# ### 14.6 FlexAttention: a window
#
# Often a token needs only its neighbourhood. With `flex_attention`, you write a rule for pairs of tokens, and the compiled kernel skips all blocks of 128 x 128 pairs that the rule excludes. Write a causal window: a query sees itself and the 255 tokens before it.

# %% tags=["predict"]
L.predict("window")

# %% tags=["measure"]
WINDOW = 256


def in_window(batch, head, query_index, key_index):
    # <blank> not later than the query, and less than WINDOW before it: (one comparison) & (another one)
    # was: return query_index >= key_index
    return (query_index >= key_index) & (query_index - key_index < WINDOW)
    # </blank>


block_mask = create_block_mask(in_window, None, None, 2048, 2048, device="cpu")
small_mask = create_block_mask(in_window, None, None, 512, 512, device="cpu")
query, key, value = (torch.randn(1, 1, 512, 64) for _ in range(3))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # without torch.compile it is only for tests, as here
    windowed = flex_attention(query, key, value, block_mask=small_mask)
places = torch.arange(512)
dense_mask = (places[:, None] >= places) & (places[:, None] - places < WINDOW)
print(f"2,048 x 2,048 pairs: {block_mask.sparsity():.0f} % of the blocks of 128 x 128 can be skipped")

# %% tags=["same"]
L.same(functional.scaled_dot_product_attention(query, key, value, attn_mask=dense_mask), windowed, 1e-4)

# %% tags=["claim"]
display(L.reveal("window", block_mask.sparsity() / 100, "%"))
L.claim(
    "with a window of 256 tokens, FlexAttention can skip more than 80 % of the blocks of a sequence of 2,048 tokens; "
    "the result is that of a dense mask",
    block_mask.sparsity() > 80,
    after=block_mask.sparsity() / 100,
    unit="%",
    source=COUNTED,
)


# %% [markdown]
# With a dense mask, all pairs are computed, and most are discarded; so does the call above, which is not compiled. To skip blocks, use `torch.compile(flex_attention)`, which generates a fused kernel for your rule.
#
# ### 14.7 Fewer keys and values
#
# The cache often limits how many texts a GPU can generate at once. In *grouped-query attention*, several query heads share one key head and one value head. Write the bytes per token of the cache of a model with 32 layers, head size 128, in bfloat16.

# %% tags=["measure"]
def cache_bytes_per_token(layers, key_value_heads, head_size, bytes_per_number=2):
    # <blank> a key and a value for each layer and head
    # was: return layers * 128 * bytes_per_number
    return 2 * layers * key_value_heads * head_size * bytes_per_number
    # </blank>


many = cache_bytes_per_token(32, 32, 128)
few = cache_bytes_per_token(32, 8, 128)
query, key, value = torch.randn(1, 32, 16, 128), torch.randn(1, 8, 16, 128), torch.randn(1, 8, 16, 128)
grouped = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
repeated = functional.scaled_dot_product_attention(
    query, key.repeat_interleave(4, dim=1), value.repeat_interleave(4, dim=1)
)
counted = 32 * sum(tensor[:, :, 0].to(torch.bfloat16).nbytes for tensor in (key, value))  # one token in 32 layers
tables.table_view(
    ("heads for keys and values", "KiB per token", "GiB for 8,192 tokens"),
    [(heads, f"{count / 1024:.0f}", f"{8192 * count / 2**30:.2f}") for heads, count in ((32, many), (8, few))],
)

# %% tags=["claim"]
display(L.same(grouped, repeated, 1e-4))
L.claim(
    "with 8 heads for keys and values instead of 32, the cache takes a quarter: 128 KiB per token for 32 layers",
    few == counted == 128 * 1024 and many == 4 * few,
    before=many / 1024,
    after=few / 1024,
    unit="KiB per token",
    source=COUNTED,
)

# %% [markdown]
# ## Transfer

# %% tags=["check"]
# <blank> "a", "b", "c" or "d"
# was: answer = None
answer = "d"
# </blank>
L.check("transfer", answer)

# %% [markdown]
# ## Summary
#
# Call `scaled_dot_product_attention` instead of writing attention out, and check which kernel runs: a shape, a stride or an option can make PyTorch use the version that stores all scores. The memory of fused attention grows in proportion to the sequence; the arithmetic still grows with its square. For generation, keep keys and values, and have few of them. See [09](09_memory_anatomy_and_oom.ipynb) for the rest of the memory and [08](08_mixed_precision.ipynb) for bfloat16: CUDA's flash kernel takes only float16 and bfloat16.

# %% tags=["card"]
L.card()
