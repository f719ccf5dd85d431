"""A diffusion model with a small U-Net and an exponential moving average over state_dict, as in DDPM repositories."""

import math

import torch
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class ResBlock(nn.Module):
    """Two convolutions that add an embedding of the time step."""

    def __init__(self, channels: int, time_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.time = nn.Linear(time_width, channels)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The input plus a residual."""
        h = self.conv1(nn.functional.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        out: Tensor = x + self.conv2(nn.functional.silu(self.norm2(h)))
        return out


class NoisePredictor(nn.Module):
    """A U-Net of two levels."""

    def __init__(self, channels: int = 32, time_width: int = 64) -> None:
        super().__init__()
        self.time_width = time_width
        self.inp, self.out = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 3, padding=1)
        self.down = nn.Conv2d(channels, 2 * channels, 4, 2, 1)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 4, 2, 1)
        self.high1, self.high2 = ResBlock(channels, time_width), ResBlock(channels, time_width)
        self.low = nn.ModuleList([ResBlock(2 * channels, time_width) for _ in range(3)])

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The predicted noise."""
        freqs = torch.exp(-math.log(10000) * torch.arange(self.time_width // 2) / (self.time_width // 2)).to(x.device)
        angles = t[:, None].float() * freqs
        emb = torch.cat([angles.sin(), angles.cos()], 1)
        x = self.high1(self.inp(x), emb)
        h = self.down(x)
        for block in self.low:
            h = block(h, emb)
        noise: Tensor = self.out(self.high2(x + self.up(h), emb))
        return noise


def prepare(scale: float) -> Namespace:
    """Images of 32 by 32 pixels."""
    return {"train_images": torch.rand(scaled(640, scale, 16), 3, 32, 32) * 2 - 1, "NoisePredictor": NoisePredictor}


CELL = """
import copy
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

T = 1000
betas = torch.linspace(1e-4, 0.02, T)
alphas_bar = torch.cumprod(1. - betas, dim=0)

def extract(v, t, shape):
    return v.gather(0, t).view([t.shape[0]] + [1] * (len(shape) - 1))

def ema(source, target, decay):
    source_dict = source.state_dict()
    target_dict = target.state_dict()
    for key in source_dict.keys():
        target_dict[key].data.copy_(target_dict[key].data * decay + source_dict[key].data * (1 - decay))

net_model = NoisePredictor()
ema_model = copy.deepcopy(net_model)
optim = torch.optim.Adam(net_model.parameters(), lr=2e-4)
sched = torch.optim.lr_scheduler.LambdaLR(optim, lr_lambda=lambda step: min(step, 5000) / 5000)
dataloader = DataLoader(TensorDataset(train_images), batch_size=16, shuffle=True, num_workers=0, drop_last=True)

step, images = 0, 0
for epoch in range(1):
    for (x_0,) in dataloader:
        optim.zero_grad()
        t = torch.randint(T, size=(x_0.shape[0],))
        noise = torch.randn_like(x_0)
        x_t = extract(alphas_bar.sqrt(), t, x_0.shape) * x_0 + extract((1 - alphas_bar).sqrt(), t, x_0.shape) * noise
        pred = net_model(x_t, t)
        loss = F.mse_loss(pred, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net_model.parameters(), 1.)
        optim.step()
        sched.step()
        ema(net_model, ema_model, 0.9999)
        step += 1
        images += len(x_0)
        if step % 20 == 0:
            print(f'step {step} loss {loss.item():.4f} lr {sched.get_last_lr()[0]:.6f}')
"""

CHANGES = (
    Change(
        "moving average with foreach",
        "foreach_optimizer",
        edits={
            """    source_dict = source.state_dict()
    target_dict = target.state_dict()
    for key in source_dict.keys():
        target_dict[key].data.copy_(target_dict[key].data * decay + source_dict[key].data * (1 - decay))
""": """    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), 1 - decay)
"""
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "net_model = NoisePredictor()\n": "net_model = NoisePredictor().to(memory_format=torch.channels_last)\n",
            "        pred = net_model(x_t, t)\n": "        pred = net_model("
            "x_t.contiguous(memory_format=torch.channels_last), t)\n",
        },
    ),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "        pred = net_model(x_t, t)\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            pred = net_model(x_t, t)\n        pred = pred.float()\n"
        },
    ),
    Change("two workers", "num_workers", edits={"num_workers=0": "num_workers=2"}),
    Change(
        "compile",
        "compile",
        edits={
            "net_model = NoisePredictor()\nema_model = copy.deepcopy(net_model)": ""
            "net_model = NoisePredictor()\nema_model = copy.deepcopy(net_model)\nnet_model = torch.compile(net_model)",
            "ema(net_model, ema_model": "ema(net_model._orig_mod, ema_model",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="images", seconds=6)
