"""Flow matching with a small diffusion transformer on latents in memory, in bfloat16 with a fused optimizer; a healthy loop."""

import torch

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Latents of an image autoencoder and class labels."""
    count = scaled(960, scale, 48)
    return {"latents": torch.randn(count, 4, 16, 16) * 0.9, "classes": torch.randint(0, 10, (count,))}


CELL = """
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH, EPOCHS, DIM, DEPTH, HEADS = 24, 1, 192, 4, 6
device = 'cuda' if torch.cuda.is_available() else 'cpu'

def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)

class DiTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(DIM, elementwise_affine=False)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(approximate='tanh'), nn.Linear(4 * DIM, DIM))
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(DIM, 6 * DIM))

    def forward(self, x, c):
        s1, b1, g1, s2, b2, g2 = self.ada(c).chunk(6, dim=1)
        B, N, _ = x.shape
        q, k, v = self.qkv(modulate(self.norm1(x), b1, s1)).view(B, N, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, DIM)
        x = x + g1.unsqueeze(1) * self.proj(att)
        return x + g2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), b2, s2))

class DiT(nn.Module):
    def __init__(self, channels=4, patch=2, size=16, n_classes=10):
        super().__init__()
        self.patch, self.size = patch, size
        self.embed = nn.Conv2d(channels, DIM, patch, patch)
        self.pos = nn.Parameter(torch.randn(1, (size // patch) ** 2, DIM) * 0.02)
        self.label = nn.Embedding(n_classes + 1, DIM)
        self.time = nn.Sequential(nn.Linear(64, DIM), nn.SiLU(), nn.Linear(DIM, DIM))
        self.register_buffer('freqs', torch.exp(torch.linspace(0, -9, 32)) * 1000)
        self.blocks = nn.ModuleList([DiTBlock() for _ in range(DEPTH)])
        self.out = nn.Linear(DIM, patch * patch * channels)

    def forward(self, x, t, y):
        phase = t[:, None] * self.freqs
        c = self.time(torch.cat([phase.sin(), phase.cos()], 1)) + self.label(y)
        h = self.embed(x).flatten(2).transpose(1, 2) + self.pos
        for block in self.blocks:
            h = block(h, c)
        return F.pixel_shuffle(self.out(h).transpose(1, 2).unflatten(2, (self.size // self.patch, -1)), self.patch)

model = DiT().to(device)
ema = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0, fused=True)
params, ema_params = list(model.parameters()), list(ema.parameters())
latents, classes = latents.to(device), classes.to(device)

step, n_latents = 0, 0
for epoch in range(EPOCHS):
    for idx in torch.randperm(len(latents), device=device).split(BATCH):
        x1, y = latents[idx], classes[idx]
        y = torch.where(torch.rand(len(y), device=device) < 0.1, 10, y)  # classifier-free guidance
        x0, t = torch.randn_like(x1), torch.rand(len(x1), device=device)
        s = t.view(-1, 1, 1, 1)
        xt = (1 - s) * x0 + s * x1
        with torch.autocast(device, dtype=torch.bfloat16):
            v = model(xt, t, y)
        loss = F.mse_loss(v.float(), x1 - x0)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        torch._foreach_lerp_(ema_params, params, 1e-3)
        n_latents += len(idx)
        if step % 20 == 0:
            print(f'step {step} loss {loss.item():.4f}')
        step += 1
"""

CHANGES = (
    Change("batches of 48", "larger_batch", edits={"DEPTH, HEADS = 24,": "DEPTH, HEADS = 48,"}),
    Change("one log", "fewer_logs", edits={"if step % 20 == 0:": "if step == 0:"}),
    Change("foreach AdamW", "foreach_optimizer", edits={"fused=True)": "foreach=True)"}),
    Change(
        "no garbage collection",
        "gc",
        edits={"step, n_latents = 0, 0": "import gc; gc.disable()\nstep, n_latents = 0, 0"},
    ),
    Change(
        "one thread", "threads", edits={"step, n_latents = 0, 0": "torch.set_num_threads(1)\nstep, n_latents = 0, 0"}
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_latents", seconds=6)
