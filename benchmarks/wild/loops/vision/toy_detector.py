"""A small single-shot detector whose anchors are matched image by image and box by box, as people write SSD by hand."""

import numpy as np
from torch import Tensor, nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


class TinySSD(nn.Module):
    """Scores and offsets for four anchors per cell of a grid of twelve by twelve."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a, b in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU(), nn.Conv2d(b, b, 3, 1, 1), nn.ReLU()]
        self.net, self.outputs = nn.Sequential(*layers, nn.Conv2d(64, 4 * (5 + classes), 3, 1, 1)), 5 + classes

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class scores, with the background first, and offsets."""
        out = self.net(x).permute(0, 2, 3, 1).reshape(len(x), -1, self.outputs)
        return out[..., 4:], out[..., :4]


def prepare(scale: float) -> Namespace:
    """Images of 96 by 96 pixels with one to six rectangles, as center, width and height."""
    rng = np.random.default_rng(0)
    images, annotations = [], []
    for _ in range(scaled(720, scale, 48)):
        image = rng.integers(0, 80, (96, 96, 3), dtype=np.uint8)
        boxes = []
        for _ in range(rng.integers(1, 7)):
            (w, h), label = rng.integers(10, 40, 2).tolist(), int(rng.integers(0, 3))
            x, y = int(rng.integers(0, 96 - w)), int(rng.integers(0, 96 - h))
            image[y : y + h, x : x + w, label] = 220
            boxes.append([(x + w / 2) / 96, (y + h / 2) / 96, w / 96, h / 96, label])
        images.append(image)
        annotations.append(boxes)
    return {"images": images, "annotations": annotations, "TinySSD": TinySSD}


CELL = """
import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

device = 'cuda' if torch.cuda.is_available() else 'cpu'

class ShapesDataset(Dataset):
    def __len__(self):
        return len(images)

    def __getitem__(self, i):
        image, boxes = torch.from_numpy(images[i]).permute(2, 0, 1) / 255, torch.tensor(annotations[i])
        if random.random() < 0.5:
            image = image.flip(-1)
            boxes[:, 0] = 1 - boxes[:, 0]
        return image, {'boxes': boxes[:, :4], 'labels': boxes[:, 4].long()}

def collate_fn(batch):
    imgs, targets = zip(*batch)
    return torch.stack(imgs), list(targets)

anchors = torch.tensor([[(j + 0.5) / 12, (i + 0.5) / 12, s, s]
                        for i in range(12) for j in range(12) for s in (0.12, 0.2, 0.28, 0.36)], device=device)

def iou(a, b):
    a1, a2, b1, b2 = a[..., :2] - a[..., 2:] / 2, a[..., :2] + a[..., 2:] / 2, b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2
    inter = (torch.min(a2, b2) - torch.max(a1, b1)).clamp(min=0).prod(-1)
    return inter / (a[..., 2:].prod(-1) + b[..., 2:].prod(-1) - inter)

def encode(boxes, anchors):
    return torch.cat([(boxes[..., :2] - anchors[..., :2]) / anchors[..., 2:] / 0.1, (boxes[..., 2:] / anchors[..., 2:]).log() / 0.2], -1)

def match(targets, anchors):
    conf = torch.zeros(len(targets), len(anchors), dtype=torch.long, device=device)
    loc = torch.zeros(len(targets), len(anchors), 4, device=device)
    for i, target in enumerate(targets):
        best = torch.full((len(anchors),), 0.5, device=device)
        for box, label in zip(target['boxes'], target['labels']):
            overlap = iou(box.to(device), anchors)
            k = overlap.argmax().item()
            overlap[k] = 2.0
            positive = overlap > best
            conf[i, positive] = label.item() + 1
            loc[i, positive] = encode(box.to(device), anchors[positive])
            best = torch.max(best, overlap)
    return conf, loc

def multibox_loss(scores, offsets, conf, loc, neg_ratio=3):
    ce = F.cross_entropy(scores.flatten(0, 1), conf.flatten(), reduction='none').view_as(conf)
    pos = conf > 0
    loss_conf = 0
    for i in range(len(conf)):
        n_neg = min(neg_ratio * pos[i].sum().item(), (~pos[i]).sum().item())
        hard = ce[i][~pos[i]].sort(descending=True)[0][:n_neg]
        loss_conf = loss_conf + ce[i][pos[i]].sum() + hard.sum()
    loss_loc = F.smooth_l1_loss(offsets[pos], loc[pos], reduction='sum')
    return loss_loc / pos.sum(), loss_conf / pos.sum()

train_loader = DataLoader(ShapesDataset(), batch_size=16, shuffle=True, collate_fn=collate_fn)
model = TinySSD(3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)

n_images = 0
for epoch in range(4):
    model.train()
    for i, (imgs, targets) in enumerate(train_loader):
        scores, offsets = model(imgs.to(device))
        conf, loc = match(targets, anchors)
        loss_loc, loss_conf = multibox_loss(scores, offsets, conf, loc)
        loss = loss_loc + loss_conf
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n_images += len(imgs)
        if i % 10 == 0:
            print(f'Epoch {epoch} [{i}/{len(train_loader)}] loc {loss_loc.item():.3f} conf {loss_conf.item():.3f}')
"""

MATCHING = CELL[CELL.index("def match(") : CELL.index("train_loader = ")]

WHOLE_BATCH = """
def match(targets, anchors):
    pad = torch.nn.utils.rnn.pad_sequence
    boxes = pad([t['boxes'] for t in targets], True).to(device)
    labels = pad([t['labels'] + 1 for t in targets], True).to(device)
    overlap = iou(boxes[:, :, None], anchors)
    overlap = overlap.scatter(2, overlap.argmax(2, keepdim=True), 2.0).masked_fill(labels[:, :, None] == 0, 0)
    best, which = overlap.max(1)
    conf = labels.gather(1, which).masked_fill(best <= 0.5, 0)
    matched = boxes.gather(1, which[..., None].expand(-1, -1, 4))
    return conf, encode(torch.where(conf[..., None] > 0, matched, anchors), anchors)

def multibox_loss(scores, offsets, conf, loc, neg_ratio=3):
    ce = F.cross_entropy(scores.flatten(0, 1), conf.flatten(), reduction='none').view_as(conf)
    pos = conf > 0
    rank = ce.detach().masked_fill(pos, -1).argsort(1, descending=True).argsort(1)
    hard = ~pos & (rank < neg_ratio * pos.sum(1, keepdim=True))
    loss_loc = F.smooth_l1_loss(offsets[pos], loc[pos], reduction='sum')
    return loss_loc / pos.sum(), ce[pos | hard].sum() / pos.sum()

"""

CHANGES = (
    Change("match and mine in whole batches", "remove_python", edits={MATCHING: WHOLE_BATCH}),
    Change("two workers", "num_workers", edits={"collate_fn=collate_fn)": "collate_fn=collate_fn, num_workers=2)"}),
    Change(
        "bf16 autocast",
        "precision",
        edits={
            "        scores, offsets = model(imgs.to(device))\n": "        with torch.autocast(device, dtype=torch.bfloat16):\n"
            "            scores, offsets = model(imgs.to(device))\n        scores, offsets = scores.float(), offsets.float()\n"
        },
    ),
    Change(
        "channels last",
        "channels_last",
        edits={
            "TinySSD(3).to(device)": "TinySSD(3).to(device, memory_format=torch.channels_last)",
            "model(imgs.to(device))": "model(imgs.to(device, memory_format=torch.channels_last))",
        },
    ),
    Change("batches of 48", "larger_batch", edits={"batch_size=16": "batch_size=48"}),
    Change("fused SGD", "fused_optimizer", edits={"weight_decay=5e-4)": "weight_decay=5e-4, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_images", seconds=6)
