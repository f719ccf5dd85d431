"""BYOL with two augmented views per item, drawn with PIL, and a momentum encoder, as in self-supervision repositories."""

import numpy as np
from PIL import Image
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def encoder() -> nn.Module:
    """A plain convolutional network with 128 features."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 2)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def prepare(scale: float) -> Namespace:
    """Images without labels, of 64 by 64 pixels."""
    count = scaled(512, scale, 64)
    images = [Image.fromarray(a) for a in np.random.randint(0, 256, (count, 64, 64, 3), dtype=np.uint8)]
    return {"images": images, "Encoder": encoder}


CELL = """
import copy, math, random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import ImageEnhance, ImageFilter
from torch.utils.data import Dataset, DataLoader

def random_resized_crop(img, size=32):
    area = img.width * img.height * random.uniform(0.2, 1.0)
    ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
    w, h = min(img.width, round(math.sqrt(area * ratio))), min(img.height, round(math.sqrt(area / ratio)))
    x, y = random.randint(0, img.width - w), random.randint(0, img.height - h)
    return img.crop((x, y, x + w, y + h)).resize((size, size))

def color_jitter(img):
    for enhance, s in ((ImageEnhance.Brightness, 0.4), (ImageEnhance.Contrast, 0.4), (ImageEnhance.Color, 0.2)):
        img = enhance(img).enhance(random.uniform(1 - s, 1 + s))
    return img

def augment(img):
    img = random_resized_crop(img)
    if random.random() < 0.5:
        img = img.transpose(0)
    if random.random() < 0.8:
        img = color_jitter(img)
    if random.random() < 0.2:
        img = img.convert('L').convert('RGB')
    if random.random() < 0.5:
        img = img.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))
    x = torch.from_numpy(np.array(img)).permute(2, 0, 1).float() / 255
    return (x - 0.5) / 0.25

class TwoViews(Dataset):
    def __len__(self):
        return len(images)

    def __getitem__(self, i):
        return augment(images[i]), augment(images[i])

def mlp(dim, hidden=256, out=64):
    return nn.Sequential(nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out))

class BYOL(nn.Module):
    def __init__(self, m=0.996):
        super().__init__()
        self.m = m
        self.online = nn.Sequential(Encoder(), mlp(128))
        self.predictor = mlp(64)
        self.target = copy.deepcopy(self.online)
        for p in self.target.parameters():
            p.requires_grad = False

    @torch.no_grad()
    def update_target(self):
        for p, q in zip(self.online.parameters(), self.target.parameters()):
            q.data = q.data * self.m + p.data * (1. - self.m)

    def forward(self, x1, x2):
        p1, p2 = self.predictor(self.online(x1)), self.predictor(self.online(x2))
        with torch.no_grad():
            z1, z2 = self.target(x1), self.target(x2)
        return 4 - 2 * (F.cosine_similarity(p1, z2.detach()).mean() + F.cosine_similarity(p2, z1.detach()).mean())

loader = DataLoader(TwoViews(), batch_size=32, shuffle=True, num_workers=4, drop_last=True)
model = BYOL()
params = list(model.online.parameters()) + list(model.predictor.parameters())
optimizer = torch.optim.SGD(params, lr=0.06, momentum=0.9, weight_decay=5e-4)

n_images = 0
for epoch in range(4):
    total_loss = 0
    for x1, x2 in loader:
        loss = model(x1, x2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_target()
        total_loss += loss.item()
        n_images += len(x1)
    print(f'epoch: {epoch:>02}, loss: {total_loss / len(loader):.5f}')
"""

CHANGES = (
    Change("no workers", "num_workers", edits={"num_workers=4, ": ""}),
    Change("two workers", "num_workers", edits={"num_workers=4": "num_workers=2"}),
    Change(
        "persistent workers",
        "persistent_workers",
        edits={"num_workers=4": "num_workers=4, persistent_workers=True"},
    ),
    Change(
        "update the target with one foreach call",
        "remove_python",
        edits={
            "        for p, q in zip(self.online.parameters(), self.target.parameters()):\n"
            "            q.data = q.data * self.m + p.data * (1. - self.m)\n": ""
            "        torch._foreach_lerp_(list(self.target.parameters()), list(self.online.parameters()), 1 - self.m)\n"
        },
    ),
    Change("batches of 64", "larger_batch", edits={"batch_size=32": "batch_size=64"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        loss = model(x1, x2)\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            loss = model(x1, x2).float()\n"
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_images", seconds=6)
