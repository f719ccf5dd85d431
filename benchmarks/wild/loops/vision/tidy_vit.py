"""A small vision transformer written with care: images in memory, whole batches, SDPA, bfloat16, fused AdamW."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Bytes of 32 by 32 images."""
    count = scaled(2560, scale, 128)
    return {
        "train_images": torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8),
        "train_labels": torch.randint(0, 10, (count,)),
    }


CELL = """
import math
import torch
from torch import nn
import torch.nn.functional as F

class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(approximate='tanh'), nn.Linear(3 * dim, dim))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.mlp(self.norm2(x))

class ViT(nn.Module):
    def __init__(self, dim=192, depth=3, heads=4, patch=4):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch ** 2, dim)
        self.pos = nn.Parameter(torch.randn(1, (32 // patch) ** 2, dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(dim, heads) for _ in range(depth)])
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 10))

    def forward(self, x):
        x = F.pixel_unshuffle(x, self.patch).flatten(2).transpose(1, 2)
        return self.head(self.blocks(self.embed(x) + self.pos).mean(1))

EPOCHS, BATCH = 1, 128
x = train_images.float().div_(255).sub_(0.47).div_(0.25)
steps_per_epoch = len(x) // BATCH
model = ViT()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
total_steps = EPOCHS * steps_per_epoch
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda s: min((s + 1) / 5, 0.5 * (1 + math.cos(math.pi * s / max(1, total_steps)))))

seen = 0
for epoch in range(EPOCHS):
    order = torch.randperm(len(x))
    epoch_loss = torch.zeros(())
    for idx in order.split(BATCH):
        with torch.autocast('cpu', dtype=torch.bfloat16):
            logits = model(x[idx])
        loss = F.cross_entropy(logits.float(), train_labels[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        epoch_loss += loss.detach()
        seen += len(idx)
    print(f'epoch {epoch}: loss {epoch_loss.item() / steps_per_epoch:.4f}')
"""

CHANGES = (
    Change("compile", "compile", edits={"model = ViT()\n": "model = torch.compile(ViT())\n"}),
    Change("float32", "precision", edits={"dtype=torch.bfloat16)": "dtype=torch.bfloat16, enabled=False)"}),
    Change("foreach AdamW", "foreach_optimizer", edits={"fused=True": "foreach=True"}),
    Change(
        "batches of 256",
        "larger_batch",
        edits={"EPOCHS, BATCH = 1, 128": "EPOCHS, BATCH = 1, 256"},
    ),
    Change(
        "a DataLoader with two workers",
        "num_workers",
        edits={
            "    order = torch.randperm(len(x))\n": "    sampler = torch.utils.data.BatchSampler("
            "torch.utils.data.RandomSampler(x), BATCH, False)\n"
            "    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, train_labels), "
            "sampler=sampler,\n                                         batch_size=None, num_workers=2)\n",
            "    for idx in order.split(BATCH):": "    for images, idx in loader:",
            "model(x[idx])": "model(images)",
            "train_labels[idx])": "idx)",
        },
    ),
    Change(
        "no garbage collection",
        "gc",
        edits={"seen = 0\n": "import gc\ngc.disable()\nseen = 0\n"},
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=7)
