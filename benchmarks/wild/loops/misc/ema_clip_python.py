"""A deep narrow network with a moving average and gradient clipping, each a Python loop over parameters."""

import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class Mixer(nn.Module):
    """Many small residual layers."""

    def __init__(self, width: int = 64, depth: int = 24) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(20, width), nn.Linear(width, 5)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
                for _ in range(depth)
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        scores: Tensor = self.out(x)
        return scores


def prepare(scale: float) -> Namespace:
    """Measurements in memory."""
    count = scaled(19_200, scale, 64)
    return {"X": torch.randn(count, 20), "Y": torch.randint(0, 5, (count,)), "model": Mixer()}


CELL = """
import math
import torch
import torch.nn.functional as F

class EMA:
    def __init__(self, model, decay):
        self.model, self.decay = model, decay
        self.shadow = {}
        for name, param in model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = param.data.clone()

    def update(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                new_average = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
                self.shadow[name] = new_average.clone()

def clip_gradient(model, max_norm):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.data.norm(2).item() ** 2
    total = math.sqrt(total)
    coef = max_norm / (total + 1e-6)
    if coef < 1:
        for p in model.parameters():
            if p.grad is not None:
                p.grad.data.mul_(coef)
    return total

optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
ema = EMA(model, 0.999)
seen, batch_size = 0, 64
for step, (xb, yb) in enumerate(zip(X.split(batch_size), Y.split(batch_size))):
    loss = F.cross_entropy(model(xb), yb)
    optimizer.zero_grad()
    loss.backward()
    norm = clip_gradient(model, 0.25)
    optimizer.step()
    ema.update()
    seen += len(xb)
    if step % 50 == 0:
        print(f'step {step}: loss {loss.item():.4f} norm {norm:.3f}')
"""

CHANGES = (
    Change(
        "moving average with foreach",
        "foreach_optimizer",
        edits={
            """        for name, param in self.model.named_parameters():
            if param.requires_grad:
                new_average = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
                self.shadow[name] = new_average.clone()
""": """        with torch.no_grad():
            torch._foreach_lerp_(list(self.shadow.values()), list(self.model.parameters()), 1.0 - self.decay)
"""
        },
    ),
    Change(
        "clip_grad_norm_",
        "clip_grad",
        edits={"norm = clip_gradient(model, 0.25)": "norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)"},
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=3e-4)": "lr=3e-4, fused=True)"}),
    Change(
        "moving average every tenth step",
        "other",
        edits={
            "    ema.update()\n": "    if step % 10 == 0:\n        ema.update()\n",
            "ema = EMA(model, 0.999)": "ema = EMA(model, 0.99)",
        },
    ),
    Change("compile", "compile", edits={"ema = EMA(model": "model.compile()\nema = EMA(model"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="seen", seconds=6)
