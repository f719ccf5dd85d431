"""GPT pre-training from a memory-mapped file of tokens with manual attention, in the manner of nanoGPT."""

import math

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class CausalSelfAttention(nn.Module):
    """Attention as written before PyTorch 2."""

    def __init__(self, width: int, heads: int, block_size: int, flash: bool) -> None:
        super().__init__()
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.heads, self.flash = heads, flash
        self.bias: Tensor
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier positions."""
        b, t, c = x.size()
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = F.softmax(att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")), dim=-1)
            y = att @ v
        out: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))
        return out


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int, block_size: int, flash: bool) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = CausalSelfAttention(width, heads, block_size, flash)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention and a feed-forward network."""
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    """A small GPT."""

    def __init__(self, vocab_size: int, block_size: int, layers: int, heads: int, width: int, flash: bool) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, width), nn.Embedding(block_size, width)
        self.h = nn.Sequential(*(Block(width, heads, block_size, flash) for _ in range(layers)))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and loss."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
        logits = self.lm_head(self.ln_f(self.h(x)))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def prepare(scale: float) -> Namespace:
    """Token files as data/prepare.py writes them."""
    for split, count in (("train", 400_000), ("val", 40_000)):
        np.random.randint(0, 65, count, dtype=np.uint16).tofile(f"{split}.bin")
    return {"GPT": GPT, "max_iters": scaled(60, scale)}


CELL = """
import os, time, math
import numpy as np
import torch

batch_size, block_size = 8, 128
n_layer, n_head, n_embd = 3, 6, 96
eval_interval, eval_iters, log_interval = 20, 5, 1
learning_rate, min_lr, warmup_iters = 1e-3, 1e-4, 10
device = 'cpu'

def get_batch(split):
    data = np.memmap(f'{split}.bin', dtype=np.uint16, mode='r')
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy((data[i:i+block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i+1:i+1+block_size]).astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)

@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ['train', 'val']:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out

def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / max(1, max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)

model = GPT(65, block_size, n_layer, n_head, n_embd, flash=False).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.1)

X, Y = get_batch('train')
t0 = time.time()
for iter_num in range(max_iters):
    for param_group in optimizer.param_groups:
        param_group['lr'] = get_lr(iter_num)
    if iter_num % eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    logits, loss = model(X, Y)
    X, Y = get_batch('train')
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if iter_num % log_interval == 0:
        t1 = time.time()
        print(f'iter {iter_num}: loss {loss.item():.4f}, time {(t1 - t0) * 1000:.2f}ms')
        t0 = t1
"""

CHANGES = (
    Change("scaled_dot_product_attention", "sdpa", edits={"flash=False": "flash=True"}),
    Change(
        "compile", "compile", edits={"flash=False).to(device)": "flash=False).to(device)\nmodel = torch.compile(model)"}
    ),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "    logits, loss = model(X, Y)\n    X, Y": "    with torch.autocast(device, dtype=torch.bfloat16):\n"
            "        logits, loss = model(X, Y)\n    X, Y"
        },
    ),
    Change(
        "evaluate less often",
        "eval_less_often",
        edits={"eval_interval, eval_iters, log_interval = 20": "eval_interval, eval_iters, log_interval = 60"},
    ),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=0.1)": "weight_decay=0.1, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="(iter_num + 1) * batch_size", seconds=6)
