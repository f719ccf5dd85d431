"""Distillation from logits that the teacher left on disk, one small file per image, into a small student."""

from pathlib import Path

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """A folder with an array of the image and one of the teacher's logits for each example."""
    count = scaled(3200, scale, 64)
    for folder in ("cache/images", "cache/logits"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    names = [f"{index:06d}" for index in range(count)]
    for name in names:
        np.save(f"cache/images/{name}.npy", np.random.randint(0, 256, (3, 32, 32), dtype=np.uint8))
        np.savez_compressed(
            f"cache/logits/{name}.npz", logits=np.random.randn(100).astype(np.float16), label=np.random.randint(100)
        )
    return {"names": names}


CELL = """
import os
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

class CachedTeacher(Dataset):
    def __init__(self, root, names):
        self.root, self.names = root, names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        img = np.load(os.path.join(self.root, 'images', self.names[i] + '.npy'))
        cached = np.load(os.path.join(self.root, 'logits', self.names[i] + '.npz'))
        x = torch.from_numpy(img.astype('float32') / 127.5 - 1)
        return x, torch.from_numpy(cached['logits'].astype('float32')), int(cached['label'])

class Student(nn.Module):
    def __init__(self, n_classes=100):
        super().__init__()
        chans = [3, 16, 32, 64]
        self.convs = nn.ModuleList([nn.Conv2d(chans[i], chans[i + 1], 3, stride=2, padding=1) for i in range(3)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(c) for c in chans[1:]])
        self.fc = nn.Linear(64, n_classes)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = F.hardswish(norm(conv(x)))
        return self.fc(x.mean(dim=(2, 3)))

class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0
    def update(self, val, n):
        self.sum += val * n
        self.count += n
    @property
    def avg(self):
        return self.sum / max(1, self.count)

def distillation_loss(student_logits, teacher_logits, labels, T=4.0, alpha=0.9):
    kd = F.kl_div(F.log_softmax(student_logits / T, 1), F.softmax(teacher_logits / T, 1), reduction='batchmean') * T * T
    return alpha * kd + (1 - alpha) * F.cross_entropy(student_logits, labels)

def accuracy(output, target, topk=(1, 5)):
    _, pred = output.topk(max(topk), 1, True, True)
    correct = pred.t().eq(target.view(1, -1).expand_as(pred.t()))
    return [correct[:k].reshape(-1).float().sum().item() * 100.0 / target.size(0) for k in topk]

dataset = CachedTeacher('cache', names)
loader = DataLoader(dataset, batch_size=64, shuffle=True)
student = Student()
optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

distilled = 0
for epoch in range(3):
    losses, top1, top5 = AverageMeter(), AverageMeter(), AverageMeter()
    for i, (x, t_logits, y) in enumerate(loader):
        s_logits = student(x)
        loss = distillation_loss(s_logits, t_logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc1, acc5 = accuracy(s_logits, y)
        losses.update(loss.item(), len(y))
        top1.update(acc1, len(y))
        top5.update(acc5, len(y))
        distilled += len(y)
        if i % 10 == 0:
            print(f'Epoch: [{epoch}][{i}/{len(loader)}]\\tLoss {losses.avg:.3f}\\tAcc@1 {top1.avg:.2f}\\tAcc@5 {top5.avg:.2f}')
"""

CHANGES = (
    Change(
        "keep the examples after the first epoch",
        "cache_items",
        edits={
            "        self.root, self.names = root, names\n": "        self.root, self.names, self.kept = root, names, {}\n",
            "        img = np.load(": "        if i in self.kept:\n            return self.kept[i]\n        img = np.load(",
            "        return x, torch.from_numpy(cached['logits'].astype('float32')), int(cached['label'])\n": """        self.kept[i] = x, torch.from_numpy(cached['logits'].astype('float32')), int(cached['label'])
        return self.kept[i]
""",
        },
    ),
    Change(
        "logits uncompressed",
        "storage_format",
        edits={
            "dataset = CachedTeacher('cache', names)": """for name in names:
    cached = np.load(f'cache/logits/{name}.npz')
    np.save(f'cache/logits/{name}.npy', np.append(cached['logits'].astype('float32'), np.float32(cached['label'])))
dataset = CachedTeacher('cache', names)""",
            "self.names[i] + '.npz')": "self.names[i] + '.npy')",
            "torch.from_numpy(cached['logits'].astype('float32')), int(cached['label'])": "torch.from_numpy(cached[:-1]), int(cached[-1])",
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "metrics every tenth step",
        "fewer_logs",
        edits={
            """        acc1, acc5 = accuracy(s_logits, y)
        losses.update(loss.item(), len(y))
        top1.update(acc1, len(y))
        top5.update(acc5, len(y))
        distilled += len(y)
        if i % 10 == 0:
""": """        distilled += len(y)
        if i % 10 == 0:
            acc1, acc5 = accuracy(s_logits, y)
            losses.update(loss.item(), len(y))
            top1.update(acc1, len(y))
            top5.update(acc5, len(y))
"""
        },
    ),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=5e-4)": "weight_decay=5e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="distilled", seconds=6)
