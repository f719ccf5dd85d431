"""Face verification with ArcFace: a small CNN, and a head over ten thousand identities, all updated in every step."""

import numpy as np

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Aligned gray faces of 32 x 32 pixels: each identity has a smooth pattern."""
    rng = np.random.default_rng(0)
    count, identities = scaled(1280, scale, 128), 10575
    labels = rng.integers(identities, size=count)
    grid = np.arange(32) / 32
    waves = np.sin(labels[:, None] * 0.37 + 9 * grid)[:, :, None] * np.cos(labels[:, None] * 0.11 + 7 * grid)[:, None]
    images = np.clip(128 + 80 * waves + 20 * rng.normal(size=(count, 32, 32)), 0, 255).astype(np.uint8)
    np.savez("casia_32.npz", images=images, labels=labels)
    return {}


CELL = """
import math
import random
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn import Parameter
from torch.utils import data

class Config:
    num_classes = 10575
    embedding_size = 512
    train_batch_size = 32
    max_epoch = 1
    lr = 1e-3
    weight_decay = 5e-4
    print_freq = 10

opt = Config()

class FaceDataset(data.Dataset):
    def __init__(self, path):
        f = np.load(path)
        self.images, self.labels = f['images'], f['labels']

    def __getitem__(self, index):
        image = self.images[index]
        if random.random() < 0.5:
            image = np.fliplr(image)
        image = image.astype(np.float32, copy=True)
        image = (image - 127.5) / 127.5
        return torch.from_numpy(image[np.newaxis]), int(self.labels[index])

    def __len__(self):
        return len(self.images)

class ConvBlock(nn.Sequential):
    def __init__(self, cin, cout, stride=1):
        super().__init__(nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.PReLU(cout))

class FaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            ConvBlock(1, 16), ConvBlock(16, 32, 2), ConvBlock(32, 32), ConvBlock(32, 64, 2), ConvBlock(64, 128, 2))
        self.bn = nn.BatchNorm2d(128)
        self.dropout = nn.Dropout(0.4)
        self.fc = nn.Linear(128 * 4 * 4, opt.embedding_size)
        self.bn_fc = nn.BatchNorm1d(opt.embedding_size)

    def forward(self, x):
        x = self.dropout(self.bn(self.features(x)))
        return self.bn_fc(self.fc(x.flatten(1)))

class ArcMarginProduct(nn.Module):
    def __init__(self, in_features, out_features, s=30.0, m=0.50, easy_margin=False):
        super().__init__()
        self.s, self.m, self.easy_margin = s, m, easy_margin
        self.weight = Parameter(torch.FloatTensor(out_features, in_features))
        nn.init.xavier_uniform_(self.weight)
        self.cos_m, self.sin_m = math.cos(m), math.sin(m)
        self.th, self.mm = math.cos(math.pi - m), math.sin(math.pi - m) * m

    def forward(self, input, label):
        cosine = F.linear(F.normalize(input), F.normalize(self.weight))
        sine = torch.sqrt((1.0 - torch.pow(cosine, 2)).clamp(1e-9, 1))
        phi = cosine * self.cos_m - sine * self.sin_m
        phi = torch.where(cosine > self.th, phi, cosine - self.mm)
        one_hot = torch.zeros(cosine.size(), device=input.device)
        one_hot.scatter_(1, label.view(-1, 1).long(), 1)
        output = (one_hot * phi) + ((1.0 - one_hot) * cosine)
        return output * self.s

device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
trainloader = data.DataLoader(FaceDataset('casia_32.npz'), batch_size=opt.train_batch_size, shuffle=True)
model = FaceNet().to(device)
metric_fc = ArcMarginProduct(opt.embedding_size, opt.num_classes).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam([{'params': model.parameters()}, {'params': metric_fc.parameters()}],
                             lr=opt.lr, weight_decay=opt.weight_decay)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)

n_faces = 0
for epoch in range(opt.max_epoch):
    model.train()
    for ii, (data_input, label) in enumerate(trainloader):
        data_input, label = data_input.to(device), label.to(device)
        feature = model(data_input)
        output = metric_fc(feature, label)
        loss = criterion(output, label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        n_faces += len(label)
        if ii % opt.print_freq == 0:
            pred = np.argmax(output.data.cpu().numpy(), axis=1)
            acc = np.mean((pred == label.cpu().numpy()).astype(int))
            print('train epoch {} iter {} loss {:.4f} acc {:.3f}'.format(epoch, ii, loss.item(), acc))
    scheduler.step()
"""

CHANGES = (
    Change(
        "fused Adam",
        "fused_optimizer",
        edits={"weight_decay=opt.weight_decay)": "weight_decay=opt.weight_decay, fused=True)"},
    ),
    Change("batches of 128", "larger_batch", edits={"train_batch_size = 32": "train_batch_size = 128"}),
    Change(
        "margin of the target only",
        "other",
        edits={
            "        sine = torch.sqrt((1.0 - torch.pow(cosine, 2)).clamp(1e-9, 1))\n"
            "        phi = cosine * self.cos_m - sine * self.sin_m\n"
            "        phi = torch.where(cosine > self.th, phi, cosine - self.mm)\n"
            "        one_hot = torch.zeros(cosine.size(), device=input.device)\n"
            "        one_hot.scatter_(1, label.view(-1, 1).long(), 1)\n"
            "        output = (one_hot * phi) + ((1.0 - one_hot) * cosine)\n"
            "        return output * self.s\n": "        label = label.view(-1, 1).long()\n"
            "        target = cosine.gather(1, label)\n"
            "        sine = torch.sqrt((1.0 - torch.pow(target, 2)).clamp(1e-9, 1))\n"
            "        phi = target * self.cos_m - sine * self.sin_m\n"
            "        phi = torch.where(target > self.th, phi, target - self.mm)\n"
            "        return cosine.scatter(1, label, phi) * self.s\n"
        },
    ),
    Change("two workers", "num_workers", edits={"shuffle=True)": "shuffle=True, num_workers=2)"}),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "        feature = model(data_input)\n        output = metric_fc(feature, label)\n": "        with torch."
            "autocast(device.type, dtype=torch.bfloat16):\n            feature = model(data_input)\n"
            "            output = metric_fc(feature, label).float()\n"
        },
    ),
    Change(
        "whole batches by index",
        "batch_whole",
        edits={
            "    def __len__(self):\n        return len(self.images)\n": "    def __getitems__(self, indices):\n"
            "        images = self.images[indices].astype(np.float32)\n"
            "        flip = np.random.rand(len(indices)) < 0.5\n"
            "        images[flip] = images[flip][:, :, ::-1]\n"
            "        images = (images - 127.5) / 127.5\n"
            "        return torch.from_numpy(images[:, None]), torch.from_numpy(self.labels[indices])\n\n"
            "    def __len__(self):\n        return len(self.images)\n",
            "batch_size=opt.train_batch_size, shuffle=True)": "batch_size=opt.train_batch_size, shuffle=True, "
            "collate_fn=lambda batch: batch)",
        },
    ),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_faces", seconds=6)
