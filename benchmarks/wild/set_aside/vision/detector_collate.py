"""A one-stage detector with a collate function for lists of boxes; anchors are matched with the boxes in Python loops."""

import random

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Images with bright rectangles, and annotations like those of COCO."""
    count = scaled(1280, scale, 16)
    images = np.random.randint(0, 100, (count, 96, 96, 3), dtype=np.uint8)
    annotations = []
    for image in images:
        boxes = []
        for _ in range(random.randint(1, 5)):
            width, height = random.randint(10, 40), random.randint(10, 40)
            x, y = random.randint(0, 95 - width), random.randint(0, 95 - height)
            category = random.randint(1, 3)
            image[y : y + height, x : x + width, category - 1] = 255
            boxes.append({"bbox": [x, y, width, height], "category_id": category, "iscrowd": 0})
        annotations.append(boxes)
    return {"images": images, "annotations": annotations}


CELL = """
import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

STRIDE, SIZE, NUM_CLASSES = 8, 96, 3
ANCHOR_SIZES = [(12, 12), (24, 24), (20, 36), (36, 20)]

class BoxDataset(Dataset):
    def __init__(self, images, annotations, train=True):
        self.images, self.annotations, self.train = images, annotations, train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        img = self.images[i].astype(np.float32) / 255
        boxes, labels = [], []
        for ann in self.annotations[i]:
            if ann['iscrowd']:
                continue
            x, y, w, h = ann['bbox']
            boxes.append([x, y, x + w, y + h])
            labels.append(ann['category_id'] - 1)
        if self.train and random.random() < 0.5:
            img = img[:, ::-1]
            boxes = [[SIZE - x2, y1, SIZE - x1, y2] for x1, y1, x2, y2 in boxes]
        img = (img - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        target = {'boxes': torch.tensor(boxes, dtype=torch.float32), 'labels': torch.tensor(labels), 'image_id': i}
        return torch.from_numpy(img.transpose(2, 0, 1).copy()).float(), target

def collate_fn(batch):
    images, targets = zip(*batch)
    return torch.stack(images), list(targets)

class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        def block(i, o, s):
            return nn.Sequential(nn.Conv2d(i, o, 3, s, 1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU(0.1))
        self.backbone = nn.Sequential(block(3, 16, 2), block(16, 32, 2), block(32, 64, 2), block(64, 64, 1))
        self.cls = nn.Conv2d(64, len(ANCHOR_SIZES) * (NUM_CLASSES + 1), 1)
        self.reg = nn.Conv2d(64, len(ANCHOR_SIZES) * 4, 1)

    def forward(self, x):
        f = self.backbone(x)
        b = x.size(0)
        cls = self.cls(f).permute(0, 2, 3, 1).reshape(b, -1, NUM_CLASSES + 1)
        reg = self.reg(f).permute(0, 2, 3, 1).reshape(b, -1, 4)
        return cls, reg

def make_anchors():
    anchors = []
    for i in range(SIZE // STRIDE):
        for j in range(SIZE // STRIDE):
            cx, cy = (j + 0.5) * STRIDE, (i + 0.5) * STRIDE
            for w, h in ANCHOR_SIZES:
                anchors.append([cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2])
    return anchors

def iou(a, b):
    iw = min(a[2], b[2]) - max(a[0], b[0])
    ih = min(a[3], b[3]) - max(a[1], b[1])
    if iw <= 0 or ih <= 0:
        return 0.0
    inter = iw * ih
    return inter / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inter)

def assign(anchors, target):
    cls_t = torch.zeros(len(anchors), dtype=torch.long)
    reg_t = torch.zeros(len(anchors), 4)
    boxes = target['boxes'].tolist()
    for k, anchor in enumerate(anchors):
        best, best_iou = None, 0.4
        for n, box in enumerate(boxes):
            v = iou(anchor, box)
            if v > best_iou:
                best, best_iou = n, v
        if best is not None:
            cls_t[k] = target['labels'][best] + 1
            reg_t[k] = (target['boxes'][best] - torch.tensor(anchor)) / STRIDE
    return cls_t, reg_t

anchors = make_anchors()
loader = DataLoader(BoxDataset(images, annotations), batch_size=16, shuffle=True, collate_fn=collate_fn)
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters=20)

images_seen = 0
for epoch in range(2):
    model.train()
    for step, (imgs, targets) in enumerate(loader):
        cls, reg = model(imgs)
        cls_t, reg_t = zip(*[assign(anchors, t) for t in targets])
        cls_t, reg_t = torch.stack(cls_t), torch.stack(reg_t)
        pos = cls_t > 0
        cls_loss = F.cross_entropy(cls.flatten(0, 1), cls_t.flatten(), reduction='none').view_as(cls_t)
        loss_cls = (cls_loss * torch.where(pos, 1.0, 0.1)).sum() / pos.sum().clamp(min=1)
        loss_box = F.smooth_l1_loss(reg[pos], reg_t[pos]) if pos.any() else reg.sum() * 0
        loss = loss_cls + loss_box
        if not torch.isfinite(loss):
            raise RuntimeError(f'loss is {loss.item()}')
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        warmup.step()
        images_seen += len(imgs)
        if step % 10 == 0:
            print(f'[{epoch}][{step}/{len(loader)}] loss {loss.item():.3f} cls {loss_cls.item():.3f} box {loss_box.item():.3f}')
"""

CHANGES = (
    Change(
        "match all anchors at once",
        "remove_python",
        edits={
            CELL[
                CELL.index("    cls_t = torch.zeros(len(anchors)") : CELL.index("anchors = make_anchors()")
            ]: """    a, b = torch.tensor(anchors)[:, None], target['boxes'][None]
    wh = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    inter = wh.prod(-1)
    ious = inter / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - inter)
    best_iou, best = ious.max(1)
    cls_t = torch.where(best_iou > 0.4, target['labels'][best] + 1, 0)
    reg_t = torch.where(best_iou[:, None] > 0.4, (target['boxes'][best] - a[:, 0]) / STRIDE, 0.)
    return cls_t, reg_t

"""
        },
    ),
    Change(
        "match in two workers",
        "num_workers",
        edits={
            "    images, targets = zip(*batch)\n    return torch.stack(images), list(targets)\n": "    images, targets = zip(*batch)\n    return torch.stack(images), [assign(anchors, t) for t in targets]\n",
            "zip(*[assign(anchors, t) for t in targets])": "zip(*targets)",
            "collate_fn=collate_fn)": "collate_fn=collate_fn, num_workers=2)",
        },
    ),
    Change(
        "images as tensors beforehand",
        "cache_items",
        edits={
            "        self.images, self.annotations, self.train = images, annotations, train\n": """        x = (images.astype(np.float32) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        self.images = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()).float()
        self.annotations, self.train = annotations, train
""",
            "        img = self.images[i].astype(np.float32) / 255\n": "        img = self.images[i]\n",
            "img = img[:, ::-1]": "img = img.flip(2)",
            "        img = (img - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]\n": "",
            "return torch.from_numpy(img.transpose(2, 0, 1).copy()).float(), target": "return img, target",
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={"model = Detector()": "model = Detector().to(memory_format=torch.channels_last)"},
    ),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=1e-4)": "weight_decay=1e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="images_seen", seconds=6)
