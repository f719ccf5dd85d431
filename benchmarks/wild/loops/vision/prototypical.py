"""Prototypical networks on drawn characters: an episodic batch sampler, PNG files turned by right angles, a test now and then."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def prepare(scale: float) -> Namespace:
    """Twenty drawings of each of 60 characters, 105 by 105 pixels with one bit each."""
    rng = np.random.default_rng(0)
    for character in range(60):
        folder = Path("omniglot") / f"character{character:02d}"
        folder.mkdir(parents=True)
        strokes = rng.integers(10, 95, (int(rng.integers(2, 5)), 4, 2))
        for drawing in range(20):
            image = Image.new("1", (105, 105), 1)
            draw = ImageDraw.Draw(image)
            for stroke in strokes + rng.integers(-4, 5, strokes.shape):
                draw.line([(int(x), int(y)) for x, y in stroke], fill=0, width=3)
            image.save(folder / f"{drawing:02d}.png")
    return {"n_episodes": scaled(90, scale, 5)}


CELL = """
import glob
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class OmniglotDataset(Dataset):
    # every character in four rotations is a class of its own
    def __init__(self, root, characters):
        self.items = []
        for c in characters:
            for rot in (0, 90, 180, 270):
                for path in sorted(glob.glob(os.path.join(root, c, '*.png'))):
                    self.items.append((path, rot, f'{c}/{rot}'))
        names = sorted({label for _, _, label in self.items})
        self.class_to_idx = {n: i for i, n in enumerate(names)}
        self.y = [self.class_to_idx[label] for _, _, label in self.items]

    def __getitem__(self, idx):
        path, rot, label = self.items[idx]
        x = self.load_img(path, rot)
        return x, self.class_to_idx[label]

    def __len__(self):
        return len(self.items)

    def load_img(self, path, rot):
        x = Image.open(path)
        x = x.rotate(float(rot))
        x = x.resize((28, 28))
        shape = 1, x.size[0], x.size[1]
        x = np.array(x, np.float32)
        x = 1.0 - torch.from_numpy(x)
        return x.transpose(0, 1).contiguous().view(shape)


class PrototypicalBatchSampler(object):
    def __init__(self, labels, classes_per_it, num_samples, iterations):
        self.labels = np.array(labels)
        self.classes_per_it, self.sample_per_class, self.iterations = classes_per_it, num_samples, iterations
        self.classes = np.unique(self.labels)
        self.indexes = [np.where(self.labels == c)[0] for c in self.classes]

    def __iter__(self):
        for _ in range(self.iterations):
            batch = []
            for c in torch.randperm(len(self.classes))[:self.classes_per_it].tolist():
                perm = torch.randperm(len(self.indexes[c]))[:self.sample_per_class]
                batch.extend(self.indexes[c][perm.numpy()].tolist())
            yield batch

    def __len__(self):
        return self.iterations


def conv_block(in_channels, out_channels):
    return nn.Sequential(nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU(), nn.MaxPool2d(2))


class ProtoNet(nn.Module):
    def __init__(self, x_dim=1, hid_dim=48, z_dim=48):
        super(ProtoNet, self).__init__()
        self.encoder = nn.Sequential(conv_block(x_dim, hid_dim), conv_block(hid_dim, hid_dim),
                                     conv_block(hid_dim, hid_dim), conv_block(hid_dim, z_dim))

    def forward(self, x):
        x = self.encoder(x)
        return x.view(x.size(0), -1)


def euclidean_dist(x, y):
    n, m, d = x.size(0), y.size(0), x.size(1)
    x = x.unsqueeze(1).expand(n, m, d)
    y = y.unsqueeze(0).expand(n, m, d)
    return torch.pow(x - y, 2).sum(2)


def prototypical_loss(input, target, n_support):
    classes = torch.unique(target)
    n_classes = len(classes)
    n_query = target.eq(classes[0].item()).sum().item() - n_support
    support_idxs = [target.eq(c).nonzero()[:n_support].squeeze(1) for c in classes]
    prototypes = torch.stack([input[idx_list].mean(0) for idx_list in support_idxs])
    query_idxs = torch.stack([target.eq(c).nonzero()[n_support:] for c in classes]).view(-1)
    dists = euclidean_dist(input[query_idxs], prototypes)
    log_p_y = F.log_softmax(-dists, dim=1).view(n_classes, n_query, -1)
    target_inds = torch.arange(0, n_classes).view(n_classes, 1, 1).expand(n_classes, n_query, 1).long()
    loss_val = -log_p_y.gather(2, target_inds).squeeze().view(-1).mean()
    _, y_hat = log_p_y.max(2)
    acc_val = y_hat.eq(target_inds.squeeze(2)).float().mean()
    return loss_val, acc_val


N_WAY, N_SUPPORT, N_QUERY = 20, 1, 5
characters = sorted(os.listdir('omniglot'))
train_set, test_set = OmniglotDataset('omniglot', characters[:45]), OmniglotDataset('omniglot', characters[45:])
tr_sampler = PrototypicalBatchSampler(train_set.y, N_WAY, N_SUPPORT + N_QUERY, n_episodes)
te_sampler = PrototypicalBatchSampler(test_set.y, N_WAY, N_SUPPORT + N_QUERY, 5)
tr_dataloader = DataLoader(train_set, batch_sampler=tr_sampler)
te_dataloader = DataLoader(test_set, batch_sampler=te_sampler)

model = ProtoNet()
optim = torch.optim.Adam(params=model.parameters(), lr=0.001)
lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer=optim, gamma=0.5, step_size=2000)
train_loss, train_acc, best_acc, episodes, eval_every = [], [], 0, 0, 50

for it, (x, y) in enumerate(tr_dataloader):
    model.train()
    optim.zero_grad()
    model_output = model(x)
    loss, acc = prototypical_loss(model_output, target=y, n_support=N_SUPPORT)
    loss.backward()
    optim.step()
    lr_scheduler.step()
    train_loss.append(loss.item())
    train_acc.append(acc.item())
    episodes += 1
    if (it + 1) % eval_every == 0:
        model.eval()
        with torch.no_grad():
            accs = [prototypical_loss(model(xt), target=yt, n_support=N_SUPPORT)[1].item() for xt, yt in te_dataloader]
        print('Avg Train Loss: {:.4f}, Avg Train Acc: {:.3f}, Test Acc: {:.3f}'.format(
            np.mean(train_loss[-eval_every:]), np.mean(train_acc[-eval_every:]), np.mean(accs)))
        if np.mean(accs) >= best_acc:
            best_acc = np.mean(accs)
            torch.save(model.state_dict(), 'best_model.pth')
"""

CHANGES = (
    Change(
        "images stay in memory",
        "cache_items",
        edits={
            "        self.items = []\n": "        self.items = []\n        self.cache = {}\n",
            "        x = self.load_img(path, rot)\n": "        if idx not in self.cache:\n"
            "            self.cache[idx] = self.load_img(path, rot)\n        x = self.cache[idx]\n",
        },
    ),
    Change(
        "two workers", "num_workers", edits={"batch_sampler=tr_sampler)": "batch_sampler=tr_sampler, num_workers=2)"}
    ),
    Change(
        "bfloat16 autocast",
        "precision",
        edits={
            "    model_output = model(x)\n": "    with torch.autocast('cpu', dtype=torch.bfloat16):\n"
            "        model_output = model(x).float()\n"
        },
    ),
    Change(
        "channels_last",
        "channels_last",
        edits={"model = ProtoNet()\n": "model = ProtoNet().to(memory_format=torch.channels_last)\n"},
    ),
    Change(
        "prototypes by reshaping, the batch is in the order of its classes",
        "remove_python",
        edits={
            "    support_idxs = [target.eq(c).nonzero()[:n_support].squeeze(1) for c in classes]\n"
            "    prototypes = torch.stack([input[idx_list].mean(0) for idx_list in support_idxs])\n"
            "    query_idxs = torch.stack([target.eq(c).nonzero()[n_support:] for c in classes]).view(-1)\n"
            "    dists = euclidean_dist(input[query_idxs], prototypes)\n": ""
            "    per_class = input.view(n_classes, n_support + n_query, -1)\n"
            "    dists = torch.cdist(per_class[:, n_support:].flatten(0, 1), per_class[:, :n_support].mean(1)).square()\n"
        },
    ),
    Change("fused Adam", "fused_optimizer", edits={"lr=0.001)": "lr=0.001, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="episodes", seconds=11)
