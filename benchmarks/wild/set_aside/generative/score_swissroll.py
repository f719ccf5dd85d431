"""A score model of points in the plane: denoising score matching with an average of the weights and samples drawn on the way."""

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """The number of iterations."""
    return {"num_iters": scaled(1200, scale, 10)}


CELL = """
import copy
import numpy as np
import torch
import torch.nn as nn

def sample_swiss_roll(n):
    t = 1.5 * np.pi * (1 + 2 * np.random.rand(n))
    x = np.stack([t * np.cos(t), t * np.sin(t)], axis=1) / 10 + 0.02 * np.random.randn(n, 2)
    return torch.tensor(x, dtype=torch.float32)

class FourierTime(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.register_buffer('freqs', torch.randn(dim // 2) * 4)

    def forward(self, t):
        x = 2 * np.pi * t[:, None] * self.freqs[None]
        return torch.cat([x.sin(), x.cos()], dim=1)

class ScoreNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.time = nn.Sequential(FourierTime(), nn.Linear(64, width), nn.SiLU())
        self.inp = nn.Linear(2, width)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(3)])
        self.out = nn.Linear(width, 2)

    def forward(self, x, t):
        h, emb = self.inp(x), self.time(t)
        for block in self.blocks:
            h = h + block(h + emb)
        return self.out(h) / marginal_std(t)[:, None]

def marginal_std(t, sigma=25.0):
    return torch.sqrt((torch.tensor(sigma) ** (2 * t) - 1) / (2 * torch.log(torch.tensor(sigma))))

@torch.no_grad()
def euler_maruyama(net, n=256, steps=100, sigma=25.0, eps=1e-3):
    ts = torch.linspace(1, eps, steps)
    dt = ts[0] - ts[1]
    x = torch.randn(n, 2) * marginal_std(torch.ones(1))
    for t in ts:
        g = sigma ** t
        x = x + g ** 2 * net(x, t.expand(n)) * dt + dt.sqrt() * g * torch.randn_like(x)
    return x

net = ScoreNet()
ema = copy.deepcopy(net)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
batch_size, decay, eps, points, history = 512, 0.999, 1e-3, 0, []
for it in range(num_iters):
    x = sample_swiss_roll(batch_size)
    t = torch.rand(batch_size) * (1 - eps) + eps
    z = torch.randn_like(x)
    std = marginal_std(t)
    score = net(x + z * std[:, None], t)
    loss = ((score * std[:, None] + z) ** 2).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    for p, p_ema in zip(net.parameters(), ema.parameters()):
        p_ema.data = decay * p_ema.data + (1 - decay) * p.data
    history.append(loss.item())
    points += batch_size
    if it % 100 == 0:
        samples = euler_maruyama(ema)
        dist = torch.cdist(samples, sample_swiss_roll(2000)).min(1).values.mean()
        print(f'{it}: loss {np.mean(history[-100:]):.4f}, mean distance to the data {dist:.3f}')
"""

CHANGES = (
    Change(
        "average by foreach",
        "remove_python",
        edits={
            """    for p, p_ema in zip(net.parameters(), ema.parameters()):
        p_ema.data = decay * p_ema.data + (1 - decay) * p.data
""": "    with torch.no_grad():\n        torch._foreach_lerp_(list(ema.parameters()), list(net.parameters()), 1 - decay)\n"
        },
    ),
    Change("draw samples once", "eval_less_often", edits={"if it % 100 == 0:": "if it == num_iters - 1:"}),
    Change(
        "compile",
        "compile",
        edits={
            "net = ScoreNet()\nema = copy.deepcopy(net)": "net = ScoreNet()\nema = copy.deepcopy(net)\nnet = torch.compile(net)"
        },
    ),
    Change("fused AdamW", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    score = net(x + z * std[:, None], t)\n": "    with torch.autocast('cpu', dtype=torch.bfloat16):\n        score = net(x + z * std[:, None], t)\n"
        },
    ),
    Change(
        "history of tensors", "remove_syncs", edits={"history.append(loss.item())": "history.append(loss.detach())"}
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="points", seconds=5)
