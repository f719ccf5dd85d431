"""A character model with a sparse mixture of experts, whose experts run one by one on masked tokens, as in makeMoE."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class MultiHeadAttention(nn.Module):
    """Causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier positions."""
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out


def prepare(scale: float) -> Namespace:
    """Characters of a text as one tensor, and the number of iterations."""
    data = torch.randint(0, 65, (200_000,))
    return {"data": data, "max_iters": scaled(140, scale, 4), "MultiHeadAttention": MultiHeadAttention}


CELL = """
import torch
import torch.nn as nn
import torch.nn.functional as F

batch_size, block_size, n_embed, n_head, n_layer, num_experts, top_k = 16, 64, 64, 4, 3, 8, 2
eval_interval, eval_iters, vocab_size = 50, 8, 65
device = 'cuda' if torch.cuda.is_available() else 'cpu'
train_data, val_data = data[:180_000], data[180_000:]

def get_batch(split):
    data = train_data if split == 'train' else val_data
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i:i + block_size] for i in ix])
    y = torch.stack([data[i + 1:i + block_size + 1] for i in ix])
    return x.to(device), y.to(device)

class NoisyTopkRouter(nn.Module):
    def __init__(self):
        super().__init__()
        self.topkroute_linear = nn.Linear(n_embed, num_experts)
        self.noise_linear = nn.Linear(n_embed, num_experts)

    def forward(self, x):
        logits = self.topkroute_linear(x)
        noisy_logits = logits + torch.randn_like(logits) * F.softplus(self.noise_linear(x))
        top_k_logits, indices = noisy_logits.topk(top_k, dim=-1)
        sparse_logits = torch.full_like(noisy_logits, float('-inf')).scatter(-1, indices, top_k_logits)
        return F.softmax(sparse_logits, dim=-1), indices

class SparseMoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = NoisyTopkRouter()
        self.experts = nn.ModuleList([nn.Sequential(nn.Linear(n_embed, 4 * n_embed), nn.ReLU(),
                                                    nn.Linear(4 * n_embed, n_embed)) for _ in range(num_experts)])

    def forward(self, x):
        gating_output, indices = self.router(x)
        final_output = torch.zeros_like(x)
        flat_x = x.view(-1, x.size(-1))
        flat_gating_output = gating_output.view(-1, gating_output.size(-1))
        for i, expert in enumerate(self.experts):
            expert_mask = (indices == i).any(dim=-1)
            flat_mask = expert_mask.view(-1)
            if flat_mask.any():
                expert_input = flat_x[flat_mask]
                expert_output = expert(expert_input)
                gating_scores = flat_gating_output[flat_mask, i].unsqueeze(1)
                final_output[expert_mask] += (expert_output * gating_scores).squeeze(1)
        return final_output

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa, self.smoe = MultiHeadAttention(n_embed, n_head), SparseMoE()
        self.ln1, self.ln2 = nn.LayerNorm(n_embed), nn.LayerNorm(n_embed)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.smoe(self.ln2(x))

class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, n_embed), nn.Embedding(block_size, n_embed)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln_f, self.lm_head = nn.LayerNorm(n_embed), nn.Linear(n_embed, vocab_size)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.size(1), device=device))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.view(-1))

@torch.no_grad()
def estimate_loss():
    model.eval()
    out = {split: torch.stack([model(*get_batch(split)) for _ in range(eval_iters)]).mean() for split in ('train', 'val')}
    model.train()
    return out

model = LanguageModel().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

n_sequences = 0
for iter in range(max_iters):
    if iter % eval_interval == 0 or iter == max_iters - 1:
        losses = estimate_loss()
        print(f"step {iter}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
    xb, yb = get_batch('train')
    loss = model(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    n_sequences += len(xb)
"""

EXPERTS = CELL[CELL.index("        final_output = torch.zeros_like(x)\n") : CELL.index("        return final_output\n")]

SORTED = """        flat_x = x.view(-1, x.size(-1))
        order = indices.flatten().argsort()
        token = order // top_k
        counts = indices.flatten().bincount(minlength=num_experts).tolist()
        outputs = torch.cat([e(part) for e, part in zip(self.experts, flat_x[token].split(counts))])
        scores = gating_output.gather(-1, indices).flatten()[order]
        final_output = torch.zeros_like(flat_x).index_add(0, token, outputs * scores[:, None]).view_as(x)
"""

CHANGES = (
    Change("tokens sorted by expert", "remove_python", edits={EXPERTS: SORTED}),
    Change(
        "evaluate once",
        "eval_less_often",
        edits={"if iter % eval_interval == 0 or iter == max_iters - 1": "if iter == max_iters - 1"},
    ),
    Change(
        "batches of 64",
        "larger_batch",
        edits={
            "num_experts, top_k = 16, 64, 64,": "num_experts, top_k = 64, 64, 64,",
            "eval_interval, eval_iters, vocab_size = 50, 8,": "eval_interval, eval_iters, vocab_size = 12, 2,",
            "range(max_iters)": "range(max_iters := max_iters // 4)",
        },
    ),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "    loss = model(xb, yb)\n": "    with torch.autocast(device, dtype=torch.bfloat16):\n        loss = model(xb, yb)\n",
            "final_output[expert_mask] += (expert_output * gating_scores).squeeze(1)": "final_output[expert_mask] += (expert_output * gating_scores).squeeze(1).to(final_output.dtype)",
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_sequences", seconds=5)
