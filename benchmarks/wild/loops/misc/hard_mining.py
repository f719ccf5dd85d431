"""An embedding of digits with a triplet selector in Python, in the manner of siamese-triplet repositories."""

import numpy as np
import torch
from torch import nn

from benchmarks.wild.loop import Change, Loop, Namespace, scaled


def embedding_net() -> nn.Module:
    """Two convolutions and two linear layers, for images of 28 by 28 pixels."""
    convnet = [
        nn.Conv2d(1, 16, 5),
        nn.PReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(16, 32, 5),
        nn.PReLU(),
        nn.MaxPool2d(2, 2),
    ]
    return nn.Sequential(*convnet, nn.Flatten(), nn.Linear(32 * 4 * 4, 128), nn.PReLU(), nn.Linear(128, 2))


def prepare(scale: float) -> Namespace:
    """Digits as bytes, sorted as they come."""
    count = scaled(10000, scale, 200)
    labels = torch.from_numpy(np.random.permutation(np.arange(count) % 10))
    return {
        "train_data": (torch.rand(10, 28, 28)[labels] * 110 + torch.rand(count, 28, 28) * 145).byte(),
        "train_labels": labels,
        "EmbeddingNet": embedding_net,
    }


CELL = """
from itertools import combinations
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from torch.utils.data.sampler import BatchSampler

class Digits(Dataset):
    def __len__(self):
        return len(train_data)

    def __getitem__(self, index):
        img = train_data[index].unsqueeze(0).float().div(255)
        return (img - 0.1307) / 0.3081, train_labels[index]

class BalancedBatchSampler(BatchSampler):
    def __init__(self, labels, n_classes, n_samples):
        self.labels = labels.numpy()
        self.indices = {label: np.where(self.labels == label)[0] for label in set(self.labels.tolist())}
        self.n_classes, self.n_samples = n_classes, n_samples

    def __iter__(self):
        for _ in range(len(self)):
            batch = []
            for label in np.random.choice(list(self.indices), self.n_classes, replace=False):
                batch.extend(np.random.choice(self.indices[label], self.n_samples, replace=False))
            yield batch

    def __len__(self):
        return len(self.labels) // (self.n_classes * self.n_samples)

def pdist(vectors):
    square = vectors.pow(2).sum(dim=1)
    return -2 * vectors.mm(vectors.t()) + square.view(1, -1) + square.view(-1, 1)

def hardest_negative(loss_values):
    hard_negative = np.argmax(loss_values)
    return hard_negative if loss_values[hard_negative] > 0 else None

class TripletSelector:
    def __init__(self, margin, negative_selection_fn):
        self.margin, self.negative_selection_fn = margin, negative_selection_fn

    def get_triplets(self, embeddings, labels):
        distance_matrix = pdist(embeddings.cpu())
        labels = labels.cpu().numpy()
        triplets = []
        for label in set(labels.tolist()):
            label_indices = np.where(labels == label)[0]
            if len(label_indices) < 2:
                continue
            negative_indices = np.where(labels != label)[0]
            for anchor, positive in combinations(label_indices, 2):
                ap_distance = distance_matrix[anchor, positive]
                loss_values = ap_distance - distance_matrix[anchor, torch.LongTensor(negative_indices)] + self.margin
                hard_negative = self.negative_selection_fn(loss_values.data.cpu().numpy())
                if hard_negative is not None:
                    triplets.append([anchor, positive, negative_indices[hard_negative]])
        if len(triplets) == 0:
            triplets.append([0, 1, len(labels) - 1])
        return torch.LongTensor(np.array(triplets))

def online_triplet_loss(embeddings, target, selector):
    triplets = selector.get_triplets(embeddings, target)
    ap = (embeddings[triplets[:, 0]] - embeddings[triplets[:, 1]]).pow(2).sum(1)
    an = (embeddings[triplets[:, 0]] - embeddings[triplets[:, 2]]).pow(2).sum(1)
    return F.relu(ap - an + selector.margin).mean(), len(triplets)

loader = DataLoader(Digits(), batch_sampler=BalancedBatchSampler(train_labels, n_classes=10, n_samples=10))
model = EmbeddingNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 8, gamma=0.1)
selector = TripletSelector(margin=1., negative_selection_fn=hardest_negative)

n_digits = 0
for epoch in range(2):
    model.train()
    losses, non_zero_triplets = [], []
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss, n_triplets = online_triplet_loss(model(data), target, selector)
        losses.append(loss.item())
        non_zero_triplets.append(n_triplets)
        loss.backward()
        optimizer.step()
        n_digits += len(data)
        if batch_idx % 50 == 0:
            print(f'[{batch_idx}/{len(loader)}] Loss: {np.mean(losses):.6f} triplets: {np.mean(non_zero_triplets)}')
    scheduler.step()
"""

MASKS = """        dist = pdist(embeddings.detach())
        same = labels[:, None] == labels[None, :]
        values, hardest = dist.masked_fill(same, float('inf')).min(1)
        pairs = torch.triu(same, 1).nonzero()
        loss_values = dist[pairs[:, 0], pairs[:, 1]] - values[pairs[:, 0]] + self.margin
        pairs = pairs[loss_values > 0]
        if len(pairs) == 0:
            return torch.tensor([[0, 1, len(labels) - 1]])
        return torch.cat([pairs, hardest[pairs[:, :1]]], 1)
"""

_SELECTION = CELL[CELL.index("        distance_matrix = pdist(") : CELL.index("\ndef online_triplet_loss")]

CHANGES = (
    Change("mine with masks", "remove_python", edits={_SELECTION: MASKS}),
    Change("mine without graph", "no_grad", edits={"pdist(embeddings.cpu())": "pdist(embeddings.detach().cpu())"}),
    Change(
        "mine on a NumPy matrix",
        "remove_python",
        edits={
            "pdist(embeddings.cpu())": "pdist(embeddings.detach().cpu()).numpy()",
            "distance_matrix[anchor, torch.LongTensor(negative_indices)]": "distance_matrix[anchor, negative_indices]",
            "loss_values.data.cpu().numpy()": "loss_values",
        },
    ),
    Change("two workers", "num_workers", edits={"n_samples=10))": "n_samples=10), num_workers=2)"}),
    Change("twenty samples per class", "larger_batch", edits={"n_samples=10))": "n_samples=20))"}),
    Change("fused Adam", "fused_optimizer", edits={"lr=1e-3)": "lr=1e-3, fused=True)"}),
)

LOOP = Loop(__doc__, prepare, CELL, CHANGES, samples="n_digits", seconds=6)
