"""Text sampled from a small GPT with top-k and a penalty for repetition, the whole context computed again for every token."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Prompts as token ids, all of one length."""
    return {"prompts": torch.randint(0, 2000, (8, 16)), "max_new_tokens": scaled(190, scale)}


CELL = """
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

class CausalSelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(torch.tril(torch.ones(T, T)) == 0, float('-inf'))
        y = F.softmax(att, dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = CausalSelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))

class GPT(nn.Module):
    def __init__(self, vocab=2000, dim=128, layers=4, heads=4, block_size=256):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(block_size, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(layers)])
        self.ln, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))

@torch.no_grad()
def generate(model, idx, max_new_tokens, temperature=0.9, top_k=40, penalty=1.2):
    nll, count = 0.0, 0
    for _ in range(max_new_tokens):
        logits = model(idx)[:, -1, :] / temperature
        next_tokens = []
        for b in range(idx.size(0)):
            row = logits[b]
            for token in set(idx[b].tolist()):
                row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
            values, indices = torch.topk(row, top_k)
            probs = F.softmax(values, dim=-1)
            choice = torch.multinomial(probs, 1)
            nll -= math.log(probs[choice].item() + 1e-9)
            count += 1
            next_tokens.append(indices[choice])
        idx = torch.cat([idx, torch.stack(next_tokens)], dim=1)
    return idx, nll / count

model = GPT()
model.eval()
tokens, mean_nll = generate(model, prompts, max_new_tokens)
print(tokens.shape, 'mean nll', mean_nll)
"""

PICK = CELL[CELL.index("        next_tokens = []") : CELL.index("    return idx, nll / count")]

CHANGES = (
    Change(
        "keys and values are kept",
        "kv_cache",
        edits={
            "        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)\n": """        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        if self.cache is not None:
            k, v = torch.cat([self.cache[0], k], dim=2), torch.cat([self.cache[1], v], dim=2)
        self.cache = (k, v)
""",
            "        self.heads = heads\n": "        self.heads, self.cache = heads, None\n",
            "torch.tril(torch.ones(T, T)) == 0": "torch.tril(torch.ones(T, k.size(2)), diagonal=k.size(2) - T) == 0",
            "    def forward(self, idx):\n        x = self.tok(idx) + self.pos(torch.arange(idx.size(1)))\n": "    def forward(self, idx, start=0):\n        x = self.tok(idx) + self.pos(torch.arange(start, start + idx.size(1)))\n",
            "        logits = model(idx)[:, -1, :] / temperature\n": """        start = 0 if model.blocks[0].attn.cache is None else idx.size(1) - 1
        logits = model(idx[:, start:], start)[:, -1, :] / temperature
""",
        },
    ),
    Change(
        "penalty and choice for the whole batch",
        "remove_python",
        edits={
            PICK: """        seen = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, idx, True)
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        values, indices = torch.topk(logits, top_k)
        probs = F.softmax(values, dim=-1)
        choice = torch.multinomial(probs, 1)
        nll -= probs.gather(1, choice).add(1e-9).log().sum().item()
        count += idx.size(0)
        idx = torch.cat([idx, indices.gather(1, choice)], dim=1)
"""
        },
    ),
    Change(
        "scaled dot product attention",
        "sdpa",
        edits={
            """        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(torch.tril(torch.ones(T, T)) == 0, float('-inf'))
        y = F.softmax(att, dim=-1) @ v
""": "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        },
    ),
    Change(
        "logits of the last position only",
        "other",
        edits={"return self.head(self.ln(x))": "return self.head(self.ln(x[:, -1:]))"},
    ),
    Change("one thread", "threads", edits={"model = GPT()": "torch.set_num_threads(1)\nmodel = GPT()"}),
    Change(
        "bfloat16 weights",
        "precision",
        edits={
            "model.eval()": "model.eval().bfloat16()",
            "model(idx)[:, -1, :] / temperature": "model(idx)[:, -1, :].float() / temperature",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="tokens.numel()", loss="mean_nll", seconds=5)
