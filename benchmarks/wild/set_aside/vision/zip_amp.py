"""JPEGs decoded from a zip file in memory by two workers, trained with autocast and a gradient scaler, checked after every epoch."""

import io
import zipfile

import numpy as np
from PIL import Image

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A zip file with a folder of JPEGs per class, as downloaded."""
    count = scaled(1600, scale, 64)
    blob = io.BytesIO()
    coarse = np.random.randint(0, 256, (count, 14, 14, 3), dtype=np.uint8)
    with zipfile.ZipFile(blob, "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(count):
            jpeg = io.BytesIO()
            Image.fromarray(coarse[index]).resize((224, 224), Image.Resampling.BICUBIC).save(jpeg, "JPEG", quality=90)
            archive.writestr(f"train/{index % 5}/img_{index:05d}.jpg", jpeg.getvalue())
    return {"zip_bytes": blob.getvalue()}


CELL = """
import io, zipfile
import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.utils.data import DataLoader, Dataset, random_split

class ZipImageFolder(Dataset):
    def __init__(self, data, size=64):
        self.zf = zipfile.ZipFile(io.BytesIO(data))
        self.names = [n for n in self.zf.namelist() if n.endswith('.jpg')]
        self.classes = sorted({n.split('/')[1] for n in self.names})
        self.size = size

    def __len__(self):
        return len(self.names)

    def load(self, name):
        img = Image.open(io.BytesIO(self.zf.read(name))).convert('RGB')
        return img.resize((self.size, self.size), Image.BILINEAR)

    def __getitem__(self, i):
        name = self.names[i]
        x = np.array(self.load(name), dtype=np.float32) / 255.0
        x = torch.tensor(x).permute(2, 0, 1)
        return x, self.classes.index(name.split('/')[1])

dataset = ZipImageFolder(zip_bytes)
n_val = len(dataset) // 8
train_set, val_set = random_split(dataset, [len(dataset) - n_val, n_val])
train_loader = DataLoader(train_set, batch_size=32, shuffle=True, num_workers=2)
val_loader = DataLoader(val_set, batch_size=32, num_workers=2)

class SEBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(c, c // 4), nn.ReLU(), nn.Linear(c // 4, c), nn.Sigmoid())

    def forward(self, x):
        return x * self.fc(x.mean((2, 3)))[:, :, None, None]

def stage(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU(), SEBlock(o))

model = nn.Sequential(stage(3, 16), stage(16, 32), stage(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))
device = 'cuda' if torch.cuda.is_available() else 'cpu'
model = model.to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, enabled=device == 'cuda')
loss_fn = nn.CrossEntropyLoss()

n = 0
for epoch in range(4):
    model.train()
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        n += len(y)
    model.eval()
    correct = 0
    with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):
        for x, y in val_loader:
            correct += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    print(f'epoch {epoch} loss {loss.item():.3f} val acc {correct / len(val_set):.3f}')
"""

CHANGES = (
    Change(
        "no workers",
        "num_workers",
        edits={
            "shuffle=True, num_workers=2)": "shuffle=True)",
            "val_set, batch_size=32, num_workers=2)": "val_set, batch_size=32)",
        },
    ),
    Change(
        "keep the workers",
        "persistent_workers",
        edits={
            "shuffle=True, num_workers=2)": "shuffle=True, num_workers=2, persistent_workers=True)",
            "val_set, batch_size=32, num_workers=2)": "val_set, batch_size=32, num_workers=2, persistent_workers=True)",
        },
    ),
    Change(
        "decode once",
        "cache_items",
        edits={
            "        self.size = size\n": "        self.size = size\n        self.decoded = [np.array(self.load(name)) for name in self.names]\n",
            "np.array(self.load(name), dtype=np.float32)": "self.decoded[i].astype(np.float32)",
            "shuffle=True, num_workers=2)": "shuffle=True)",
            "val_set, batch_size=32, num_workers=2)": "val_set, batch_size=32)",
        },
    ),
    Change(
        "let the decoder shrink the image",
        "vectorize_items",
        edits={
            "Image.open(io.BytesIO(self.zf.read(name))).convert('RGB')\n": "Image.open(io.BytesIO(self.zf.read(name)))\n"
            "        img.draft('RGB', (self.size, self.size))\n        img = img.convert('RGB')\n"
        },
    ),
    Change(
        "float32",
        "precision",
        edits={
            "with torch.autocast(device, dtype=torch.bfloat16):\n            loss": "with torch.autocast(device, enabled=False):\n            loss",
            "with torch.no_grad(), torch.autocast(device, dtype=torch.bfloat16):": "with torch.no_grad():",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n", seconds=6)
