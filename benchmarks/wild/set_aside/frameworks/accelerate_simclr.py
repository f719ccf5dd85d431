"""Contrastive learning under Accelerate with gradient accumulation; two heavily augmented views of every image by Pillow."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Small colour images without labels."""
    count = scaled(9600, scale, 128)
    return {"unlabeled": np.random.randint(0, 256, (count, 48, 48, 3), dtype=np.uint8)}


CELL = """
import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch.utils.data import DataLoader, Dataset

class SimCLRAugment:
    def __init__(self, size=32):
        self.size = size

    def crop(self, img):
        area = random.uniform(0.2, 1.0) * img.width * img.height
        ratio = random.uniform(3 / 4, 4 / 3)
        w, h = min(img.width, int((area * ratio) ** 0.5)), min(img.height, int((area / ratio) ** 0.5))
        x, y = random.randint(0, img.width - w), random.randint(0, img.height - h)
        return img.resize((self.size, self.size), Image.BICUBIC, box=(x, y, x + w, y + h))

    def jitter(self, img):
        ops = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
        random.shuffle(ops)
        for op in ops:
            img = op(img).enhance(random.uniform(0.2, 1.8))
        return img

    def __call__(self, img):
        img = self.crop(img)
        if random.random() < 0.5:
            img = ImageOps.mirror(img)
        if random.random() < 0.8:
            img = self.jitter(img)
        if random.random() < 0.2:
            img = ImageOps.grayscale(img).convert('RGB')
        if random.random() < 0.5:
            img = img.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
        x = torch.from_numpy(np.asarray(img).copy()).permute(2, 0, 1).float() / 255.
        return (x - 0.5) / 0.25

class TwoViews(Dataset):
    def __init__(self, arrays):
        self.arrays, self.augment = arrays, SimCLRAugment()

    def __len__(self):
        return len(self.arrays)

    def __getitem__(self, i):
        img = Image.fromarray(self.arrays[i])
        return self.augment(img), self.augment(img)

def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(conv_block(3, 24), conv_block(24, 48), conv_block(48, 96),
                                      nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 32))

    def forward(self, x):
        return F.normalize(self.head(self.backbone(x)), dim=1)

def nt_xent(z1, z2, temperature=0.2):
    z = torch.cat([z1, z2])
    sim = z @ z.t() / temperature
    sim.fill_diagonal_(-1e9)
    n = z1.size(0)
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(0, n)]).to(z.device)
    return F.cross_entropy(sim, target)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
loader = DataLoader(TwoViews(unlabeled), batch_size=64, shuffle=True, drop_last=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

pairs, losses = 0, []
for epoch in range(1):
    model.train()
    for x1, x2 in loader:
        with accelerator.accumulate(model):
            loss = nt_xent(model(x1), model(x2))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss).mean().item())
        pairs += x1.size(0)
    accelerator.print(f'epoch {epoch}: loss {np.mean(losses):.4f}')
"""

CHANGES = (
    Change(
        "two workers",
        "num_workers",
        edits={"shuffle=True, drop_last=True)": "shuffle=True, drop_last=True, num_workers=2)"},
    ),
    Change(
        "augment whole batches as tensors",
        "batch_whole",
        edits={
            "        img = Image.fromarray(self.arrays[i])\n        return self.augment(img), self.augment(img)\n": """        return self.arrays[i]

def augment_batch(x):
    n = x.size(0)
    scale = torch.empty(n).uniform_(0.45, 1.0)
    shift = torch.empty(n, 2).uniform_(-1, 1) * (1 - scale)[:, None]
    flip = torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = scale * flip, scale, shift
    x = F.grid_sample(x, F.affine_grid(theta, (n, 3, 32, 32), align_corners=False), align_corners=False)
    x = (x * torch.empty(n, 1, 1, 1).uniform_(0.2, 1.8)).clamp(0, 1)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (mean + (x - mean) * torch.empty(n, 1, 1, 1).uniform_(0.2, 1.8)).clamp(0, 1)
    gray = x.mean(1, keepdim=True)
    x = torch.where(torch.rand(n, 1, 1, 1) < 0.2, gray, gray + (x - gray) * torch.empty(n, 1, 1, 1).uniform_(0.2, 1.8))
    x = torch.where(torch.rand(n, 1, 1, 1) < 0.5, F.avg_pool2d(x, 3, 1, 1), x)
    return (x.clamp(0, 1) - 0.5) / 0.25

def collate(arrays):
    x = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255.
    return augment_batch(x), augment_batch(x)
""",
            "shuffle=True, drop_last=True)": "shuffle=True, drop_last=True, collate_fn=collate)",
        },
    ),
    Change(
        "batches of 128 without accumulation",
        "larger_batch",
        edits={"gradient_accumulation_steps=2": "gradient_accumulation_steps=1", "batch_size=64": "batch_size=128"},
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "            loss = nt_xent(model(x1), model(x2))\n": "            with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "                h1, h2 = model(x1), model(x2)\n            loss = nt_xent(h1.float(), h2.float())\n"
        },
    ),
    Change(
        "losses stay tensors",
        "remove_syncs",
        edits={"accelerator.gather(loss).mean().item()": "loss.detach()"},
    ),
    Change("fused AdamW", "fused_optimizer", edits={"weight_decay=1e-4)": "weight_decay=1e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="pairs", seconds=5)
