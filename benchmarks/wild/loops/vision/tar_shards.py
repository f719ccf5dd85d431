"""A classifier on tar shards of JPEG files that an IterableDataset streams, shuffles in a buffer and augments with PIL."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Four shards; each sample is a photo-like JPEG and a JSON file with its label."""
    rng = np.random.default_rng(0)
    photos = []
    for _ in range(48):
        coarse = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        picture = np.asarray(Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC)).astype(int)
        noisy = np.clip(picture + rng.integers(-12, 13, picture.shape), 0, 255).astype(np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noisy).save(buffer, "JPEG", quality=88)
        photos.append(buffer.getvalue())
    Path("shards").mkdir()
    per_shard = scaled(128, scale, 32)
    for shard in range(4):
        with tarfile.open(f"shards/train-{shard:04d}.tar", "w") as tar:
            for index in range(per_shard):
                pick = int(rng.integers(len(photos)))
                for suffix, content in (("jpg", photos[pick]), ("json", json.dumps({"label": pick % 10}).encode())):
                    info = tarfile.TarInfo(f"{shard:04d}{index:05d}.{suffix}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    return {}


CELL = """
import glob
import io
import json
import random
import tarfile

import numpy as np
import torch
from PIL import Image
from torch import nn, optim
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

SIZE = 112
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)


def random_resized_crop(img, size, scale=(0.25, 1.0)):
    w, h = img.size
    area = w * h * random.uniform(*scale)
    ratio = random.uniform(3 / 4, 4 / 3)
    cw, ch = min(w, int((area * ratio) ** 0.5)), min(h, int((area / ratio) ** 0.5))
    x, y = random.randint(0, w - cw), random.randint(0, h - ch)
    return img.resize((size, size), Image.BILINEAR, box=(x, y, x + cw, y + ch))


class ShardDataset(IterableDataset):
    def __init__(self, pattern, buffer_size=100):
        super().__init__()
        self.urls = sorted(glob.glob(pattern))
        self.buffer_size = buffer_size

    def read(self):
        urls = list(self.urls)
        info = get_worker_info()
        if info is not None:
            urls = urls[info.id::info.num_workers]
        random.shuffle(urls)
        for url in urls:
            with tarfile.open(url) as tar:
                sample = {}
                for member in tar:
                    key, ext = member.name.split('.')
                    sample[ext] = tar.extractfile(member).read()
                    if len(sample) == 2:
                        yield sample
                        sample = {}

    def shuffled(self):
        buf = []
        for sample in self.read():
            buf.append(sample)
            if len(buf) >= self.buffer_size:
                yield buf.pop(random.randrange(len(buf)))
        random.shuffle(buf)
        yield from buf

    def decode(self, sample):
        img = Image.open(io.BytesIO(sample['jpg'])).convert('RGB')
        img = random_resized_crop(img, SIZE)
        if random.random() < 0.5:
            img = img.transpose(Image.FLIP_LEFT_RIGHT)
        x = (np.asarray(img, dtype=np.float32) / 255.0 - MEAN) / STD
        return torch.from_numpy(x.transpose(2, 0, 1).copy()), json.loads(sample['json'])['label']

    def __iter__(self):
        return map(self.decode, self.shuffled())


def conv_bn(inp, out, k, stride, groups=1):
    return nn.Sequential(nn.Conv2d(inp, out, k, stride, k // 2, groups=groups, bias=False), nn.BatchNorm2d(out), nn.ReLU(True))


class TinyNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.features = nn.Sequential(
            conv_bn(3, 24, 3, 2),
            conv_bn(24, 48, 3, 2),
            conv_bn(48, 96, 3, 2),
            conv_bn(96, 128, 3, 2),
        )
        self.head = nn.Linear(128, n_classes)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def train_one_epoch(model, loader, criterion, optimizer, epoch):
    model.train()
    count, correct = 0, torch.zeros((), dtype=torch.long)
    for it, (images, targets) in enumerate(loader):
        logits = model(images)
        loss = criterion(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count += len(images)
        correct += (logits.argmax(1) == targets).sum()
        if it % 10 == 0:
            print(f'[{epoch}][{it}] loss {loss.item():.3f}')
    print(f'epoch {epoch} acc {correct.item() / count:.3f}')
    return loss, count


model = TinyNet(10)
loader = DataLoader(ShardDataset('shards/train-*.tar'), batch_size=32)
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-5)
images_seen = 0
for epoch in range(5):
    loss, count = train_one_epoch(model, loader, criterion, optimizer, epoch)
    images_seen += count
"""

CHANGES = (
    Change("two workers", "num_workers", edits={"batch_size=32)": "batch_size=32, num_workers=2)"}),
    Change(
        "JPEG decoded at half its size",
        "vectorize_items",
        edits={
            "        img = Image.open(io.BytesIO(sample['jpg'])).convert('RGB')\n": ""
            "        img = Image.open(io.BytesIO(sample['jpg']))\n"
            "        img.draft('RGB', (160, 120))\n        img = img.convert('RGB')\n"
        },
    ),
    Change(
        "channels_last",
        "channels_last",
        edits={
            "model = TinyNet(10)\n": "model = TinyNet(10).to(memory_format=torch.channels_last)\n",
            "        logits = model(images)\n": ""
            "        logits = model(images.contiguous(memory_format=torch.channels_last))\n",
        },
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        logits = model(images)\n": "        with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "            logits = model(images).float()\n"
        },
    ),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=5e-5)": "weight_decay=5e-5, fused=True)"}),
    Change("batches of 64", "larger_batch", edits={"batch_size=32)": "batch_size=64)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="images_seen", seconds=10)
